# Sets up the virtual environment that packaging/run and packaging/test share, and the one that
# packaging/build-binary has for itself. Sourced, with $root set.
#
# Until a Python is found only what the shell itself can do is used, so that the advice comes through on a bare machine.

venv=${APPLIANCE_VENV:-$root/.venv} # set it to keep an environment per Python

# Every Python that the suite runs on, newest first. A newer one is only tried as python3: pinned wheels may be missing.
pythons="python3.15 python3.14 python3.13 python3.12 python3.11"

say() { printf '%s\n' "$*" >&2; }

die() {
    say "$*"
    exit 1
}

# Prints the version of a Python that really runs (a pyenv shim may exist and fail) and is one of ours.
supported_version() {
    "$1" -c 'import sys
if sys.version_info < (3, 11): sys.exit(1)
print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null
}

# Debian keeps ensurepip apart from Python, and venv without it makes an environment that has no pip.
can_make_venv() { "$1" -c 'import venv, ensurepip' 2>/dev/null; }

# What a build needs and this machine lacks: names of Debian packages.
missing=

# need PACKAGE [PROGRAM]: notes a package unless its program, file or directory is here, or the package itself.
need() {
    case ${2-} in
    '') case $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null || :) in installed) return 0 ;; esac ;;
    /*) [ ! -e "$2" ] || return 0 ;;
    *) ! command -v "$2" >/dev/null || return 0 ;;
    esac
    missing="$missing $1"
}

# What packaging/build-binary needs: objdump, and a Python with venv and its shared library. $venv is the build's.
need_for_binary() {
    need binutils objdump
    builder=$venv/bin/python
    version=$(supported_version "$builder") || version=
    if [ -z "$version" ] || [ -n "${PYTHON-}" ]; then
        if [ -z "${PYTHON-}" ] && ! (find_python) 2>/dev/null; then
            missing="$missing python3 python3-venv libpython3-dev"
            return
        fi
        find_python
        builder=$python
    fi
    # Py_ENABLE_SHARED is not enough: Debian packages the library of its Python apart.
    "$builder" -c 'import ctypes.util, os, sys, sysconfig
name = "python%d.%d" % sys.version_info[:2]
folders = [sysconfig.get_config_var("LIBDIR") or "", os.path.join(sys.base_prefix, "lib")]
file = sysconfig.get_config_var("INSTSONAME") or ""
shared = file.find(".so") > 0 and any(os.path.exists(os.path.join(folder, file)) for folder in folders)
sys.exit(not (shared or ctypes.util.find_library(name)))' ||
        missing="$missing libpython${version%.*}"
}

# What packaging/build-deb needs, and what packaging/build-all needs.
need_for_deb() {
    need_for_binary
    need dpkg dpkg-deb
    need gzip gzip
}
need_for_all() {
    need_for_deb
    need coreutils sha256sum
}

# Ends the script before any work, with one line that installs everything.
check_needs() { [ -z "$missing" ] || die "not installed:$missing. On Debian, run: apt-get install$missing"; }

# Sets $python and $version.
find_python() {
    lacking=
    if [ -n "${PYTHON-}" ]; then set -- "$PYTHON"; else set -- $pythons python3; fi
    for python in "$@"; do
        version=$(supported_version "$python") || continue
        if can_make_venv "$python"; then return; fi
        lacking=$version
    done
    [ -z "$lacking" ] ||
        die "Python $lacking is here without its venv module; on Debian: apt-get install python3-venv"
    [ -z "${PYTHON-}" ] || die "PYTHON=$PYTHON is not a Python 3.11 or newer that runs"
    die "Python 3.11 or newer is needed; on Debian: apt-get install python3 python3-venv"
}

# Keeps the environment if it works, and if it is of the Python that was asked for by $PYTHON. Sets $version.
prepare_venv() {
    found=$(supported_version "$venv/bin/python") || found=
    "$venv/bin/python" -c 'import pip' 2>/dev/null || found=
    version=$found
    if [ -z "$found" ] || [ -n "${PYTHON-}" ]; then find_python; fi
    if [ "$found" = "$version" ]; then return; fi
    say "setting up ${venv#"$root/"} with Python $version ..."
    rm -rf "$venv"
    "$python" -m venv "$venv" || die "could not make $venv"
}

# What an installation depends on: these files, where the project is (an editable install points there), and Python.
fingerprint() { (cd "$root" && cksum "$@") && printf '%s\n' "$root $version"; }

# Wheels only: a source archive would download build requirements that are in no list of hashes. The two exceptions are test
# packages, built with the setuptools of requirements-build.txt and nothing else: dkimpy has no wheel, and pyyaml lacks one
# for Python 3.15 (without Cython it builds as pure Python).
# More arguments are options of pip.
install_hashed() {
    case $version in
    3.11.* | 3.12.* | 3.13.* | 3.14.*) from_source=dkimpy ;;
    *) from_source=dkimpy,pyyaml ;;
    esac
    install_with_pip --require-hashes --only-binary :all: --no-binary "$from_source" --no-build-isolation "$@"
}

install_with_pip() {
    "$venv/bin/python" -m pip install --quiet --quiet --disable-pip-version-check --no-input "$@" ||
        die "the installation failed (see above); the next start tries it again"
}

# The stamp is taken away first and written last, so an interrupted installation is done again.
is_installed() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }

prepare_run() {
    prepare_venv
    stamp=$venv/.installed-run
    wanted=$(fingerprint pyproject.toml packaging/requirements-build.txt packaging/requirements.txt)
    if is_installed "$stamp" "$wanted" && [ -x "$venv/bin/appliance" ]; then return; fi
    rm -f "$stamp"
    say "installing the packages of packaging/requirements.txt ..."
    install_hashed -r "$root/packaging/requirements.txt"
    install_hashed -r "$root/packaging/requirements-build.txt"
    install_with_pip --no-deps --no-build-isolation -e "$root"
    printf '%s\n' "$wanted" >"$stamp"
}

# prepare_more NAME: besides what runs the program, the packages of requirements-NAME.txt.
prepare_more() {
    prepare_run
    stamp=$venv/.installed-$1
    wanted=$(fingerprint "packaging/requirements-$1.txt")
    if is_installed "$stamp" "$wanted"; then return; fi
    rm -f "$stamp"
    say "installing the packages of packaging/requirements-$1.txt ..."
    # A run imports few of these modules, and Python compiles them then.
    install_hashed --no-compile -r "$root/packaging/requirements-$1.txt"
    printf '%s\n' "$wanted" >"$stamp"
}

# The same sources, built by the same Python on the same system, make the same bytes: no clock, no hash seed of the day and
# no settings of the person who builds go in. Without git, and without $SOURCE_DATE_EPOCH, the time is a fixed one.
fix_surroundings() {
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || printf 1767225600)}
    export SOURCE_DATE_EPOCH PYTHONHASHSEED=0 LC_ALL=C.UTF-8 TZ=UTC
    unset PYTHONPATH PYTHONOPTIMIZE
    umask 022
}
