"""In charge of what all tests share: generated inputs may take their time, for a busy machine is nobody's fault."""

from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
