#!/usr/bin/env python3
"""Makes a docker image for cbench's boxes out of this machine's own installed packages, without a
registry: shell tools, python3, a C++ compiler, and the libraries that the given programs need.

usage: scripts/box_image.py [--tag cbench-box] [--packages "a b c"] [PROGRAM ...]

A PROGRAM (the cbench binary) is not put into the image, only what it is linked against. Debian and
its kin only: the files are taken by package, with everything those packages depend on. Prints the
image's id.
"""
import argparse
import glob
import os
import re
import subprocess
import sys
import tarfile

PACKAGES = ("bash coreutils dash findutils grep sed tar gzip diffutils procps util-linux "
            "mount python3 g++ libc-bin libgomp1")
EMPTY = ("proc", "sys", "dev", "tmp", "root", "run", "var", "app", "input", "opt", "package", "plugin",
         "cbench", "out")
LEFT_OUT = re.compile(r"^/usr/share/(doc|man|info|locale|lintian|bug)/|/__pycache__/")


def installed():
    """{name: [names of alternatives, one list a dependency]} of the installed packages, and
    {virtual name: real name}."""
    depends, provides = {}, {}
    with open("/var/lib/dpkg/status", encoding="utf-8") as status:
        records = status.read().split("\n\n")
    for record in records:
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", record, re.M))
        if fields.get("Status", "").split()[-1:] != ["installed"]:
            continue
        needs = ", ".join(fields[f] for f in ("Pre-Depends", "Depends") if f in fields)
        depends[fields["Package"]] = [
            [re.split(r"[ (:]", choice.strip())[0] for choice in group.split("|")]
            for group in needs.split(",") if group.strip()]
        for name in fields.get("Provides", "").split(","):
            provides.setdefault(re.split(r"[ (:]", name.strip())[0], fields["Package"])
    return depends, provides


def closure(roots, depends, provides):
    seen, todo = set(), list(roots)
    while todo:
        name = todo.pop()
        name = name if name in depends else provides.get(name, "")
        if name in seen or not name:
            continue
        seen.add(name)
        for choices in depends[name]:
            there = [c for c in choices if c in depends or c in provides]
            todo += there[:1]
    return seen


def files_of(package):
    lists = glob.glob(f"/var/lib/dpkg/info/{package}.list")
    lists += glob.glob(f"/var/lib/dpkg/info/{package}:*.list")
    for path in lists:
        with open(path, encoding="utf-8") as listing:
            yield from (line.rstrip("\n") for line in listing)


def libraries_of(program):
    text = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for path in re.findall(r"(/\S+) \(0x", text):
        yield path
        yield os.path.realpath(path)


def alternatives():
    """Links such as /usr/bin/c++ that no package owns."""
    for link in glob.glob("/usr/bin/*"):
        if os.path.islink(link) and os.readlink(link).startswith("/etc/alternatives/"):
            yield link
    yield from glob.glob("/etc/alternatives/*")


def merged(path):
    """/lib/x as /usr/lib/x where /lib is a link: a tar must not name it both ways."""
    top = "/" + path.split("/")[1]
    return os.path.realpath(top) + path[len(top):] if os.path.islink(top) else path


def paths(arguments):
    depends, provides = installed()
    roots = PACKAGES.split() + arguments.packages.split()
    missing = [r for r in roots if r not in depends and r not in provides]
    if missing:
        sys.exit("box_image: not installed here: " + " ".join(missing))
    found = {"/etc/passwd", "/etc/group", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"}
    found.update(glob.glob("/etc/ld.so.conf.d/*.conf"))
    found.update(alternatives())
    for package in closure(roots, depends, provides):
        found.update(files_of(package))
    for program in arguments.programs:
        found.update(libraries_of(program))
    plain = {merged(p) for p in found if len(p) > 2 and not LEFT_OUT.search(p)}
    links = {t for t in glob.glob("/*") if os.path.islink(t) and os.path.realpath(t) != "/"}
    empty = {"/" + name for name in EMPTY}
    return sorted(p for p in (plain | links) - empty if os.path.lexists(p))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tag", default="cbench-box")
    parser.add_argument("--packages", default="", help="more packages, with what they depend on")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    arguments = parser.parse_args()
    chosen = paths(arguments)
    with subprocess.Popen(["docker", "import", "-", arguments.tag], stdin=subprocess.PIPE) as docker:
        with tarfile.open(fileobj=docker.stdin, mode="w|") as tar:
            for directory in EMPTY:
                entry = tarfile.TarInfo(directory)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if directory == "tmp" else 0o755
                tar.addfile(entry)
            for path in chosen:
                entry = tar.gettarinfo(path)
                if entry is None or not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
                    continue
                entry.mode &= 0o1777  # nothing in a box needs set-user-id
                if entry.isreg():
                    with open(path, "rb") as content:
                        tar.addfile(entry, content)
                else:
                    tar.addfile(entry)
        docker.stdin.close()
    if docker.returncode != 0:
        sys.exit("box_image: docker import failed; is the engine running?")


if __name__ == "__main__":
    main()
