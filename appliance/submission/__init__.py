"""SMTP submission: aiosmtpd's protocol class on trio-asyncio's loop, around a core of ours that does no I/O."""
