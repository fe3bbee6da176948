"""In charge of restores that were killed: what they leave behind, and that nobody begins anew in its place."""

from pathlib import Path

from appliance.store import FILE_NAME as DATABASE

STAGING = "restoring-"  # how directories begin in which a backup is made ready
ASIDE = "before-restore-"  # and those in which what stood in its place is kept


def unfinished(data_dir: Path) -> str | None:
    """What to do about a restore that was killed before its database was in place; None when there was none."""
    if (data_dir / DATABASE).exists() or not any(data_dir.glob(f"{STAGING}*")):
        return None
    kept = sorted(each for each in data_dir.glob(f"{ASIDE}*") if (each / DATABASE).exists())
    advice = f"; what was there before is in {kept[-1]}" if kept else ""
    return f"a restore into {data_dir} was interrupted: run `appliance restore --force` with the backup again{advice}"
