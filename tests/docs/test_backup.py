"""The commands of docs/backup.md, run as they stand there."""

import os
import re
from datetime import date

import pytest

from tests.docs.documents import USER, blocks, installed

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to become the service's user")


def test_the_documented_backup_is_made_and_is_good() -> None:
    once, daily = blocks("backup.md")[:2]
    with installed() as service:
        made = "sudo appliance account create acme --email a@example.org --password-stdin"
        ran = service.shell(made, service.directory / "root", stdin="a long password\n")
        assert ran.returncode == 0, ran.stderr
        # The server makes the key file at its first start.
        service.shell("sudo appliance domain add acme acme.example", service.directory / "root")
        here = f"{service.directory}/backups"
        text = (once + daily).replace("/var/backups/appliance", here).replace("-o appliance -g appliance", f"-o {USER}")
        ran = service.shell(text, service.directory / "root")
        assert ran.returncode == 0, ran.stderr
        assert re.search(r"\.tar is complete: .* 1 account, 0 messages", ran.stdout)
        (file,) = (service.directory / "backups").iterdir()
        assert file.name == f"{date.today()}.tar"
        assert file.stat().st_mode & 0o777 == 0o600
        assert {each.owner() for each in service.data_dir.iterdir()} == {USER}
