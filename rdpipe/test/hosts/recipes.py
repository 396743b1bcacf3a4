# SPDX-License-Identifier: Apache-2.0
"""Tests recipes of the guide that need additional software: two databases if PostgreSQL is installed, an image if skopeo is."""
import contextlib
import glob
import hashlib
import json
import os
import pwd
import shutil
import tarfile
import tempfile

from cases import expect
from hosts import run, wait_for


@contextlib.contextmanager
def database(folder, name, programs):
    """Starts a private PostgreSQL server, and yields the directory of its socket."""
    place = os.path.join(folder, name)
    os.mkdir(place)
    shutil.chown(place, "postgres")
    as_its_user = ["runuser", "-u", "postgres", "--"]
    run(*as_its_user, f"{programs}/initdb", "-D", f"{place}/data", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale", "C")
    settings = f"-k {place} -c listen_addresses= -c fsync=off -c autovacuum=off"
    run(*as_its_user, f"{programs}/pg_ctl", "-D", f"{place}/data", "-w", "-o", settings, "-l", f"{place}/log", "start")
    try:
        yield place
    finally:
        run(*as_its_user, f"{programs}/pg_ctl", "-D", f"{place}/data", "-m", "immediate", "-w", "stop", check=False)


def text_of(place, programs):
    """Returns the complete contents of the database as text."""
    return lines_of(run(f"{programs}/pg_dump", "-h", place, "-U", "postgres", "shop"))


def lines_of(told):
    """Returns the lines of a dump, without comments and lines that contain a random number."""
    return [line for line in told.splitlines() if not line.startswith(("\\restrict", "\\unrestrict", "--"))]


def programs():
    """Returns the directory of the newest PostgreSQL programs."""
    return max(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[-2]))


def a_dump_between_two_databases(hosts):
    commands = programs()
    folder = tempfile.mkdtemp(prefix="beamway-databases-")
    os.chmod(folder, 0o755)
    expect(pwd.getpwnam("postgres"), "no user postgres")
    try:
        with database(folder, "one", commands) as one, database(folder, "two", commands) as two:
            run(f"{commands}/createdb", "-h", one, "-U", "postgres", "shop")
            run(f"{commands}/psql", "-h", one, "-U", "postgres", "-q", "-v", "ON_ERROR_STOP=1", "shop", "-c", """
                create table goods (id serial primary key, name text not null, price numeric(10, 2), picture bytea);
                insert into goods (name, price, picture) select 'good ' || n, n / 7.0, decode(md5(n::text), 'hex') from generate_series(1, 20000) n;
                create index on goods (name); create view dear as select * from goods where price > 1000""")
            dump = f"rdpipe host1:'{commands}/pg_dump -Fc -h {one} -U postgres %s' host2:'{commands}/pg_restore --create -h {two} -U postgres -d postgres'"
            status, out, err = hosts.call(dump % "shop")
            expect(status == 0 and out == b"", f"status {status}: {err}")
            was, now = text_of(one, commands), text_of(two, commands)
            expect(len(was) > 20_000 and was == now, f"{len(was)} lines and {len(now)}")
            status, _, err = hosts.call(f"rdpipe host1:'{commands}/pg_dump -h {one} -U postgres shop' host2:'zstd -T0' host3:'>{folder}/shop.zst'")
            expect(status == 0 and lines_of(run("zstd", "-dc", f"{folder}/shop.zst")) == was, f"status {status}: {err}")
            status, _, err = hosts.call(dump % "none")
            expect(status != 0 and 'database "none" does not exist' in err and "host1: " in err, f"status {status}: {err}")
    finally:
        wait_for("the databases have ended", lambda: not glob.glob(f"{folder}/*/data/postmaster.pid"))
        shutil.rmtree(folder)


def an_image(folder):
    """Creates a container image with one layer in the OCI layout."""
    os.makedirs(f"{folder}/blobs/sha256")

    def blob(kind, data):
        digest = hashlib.sha256(data).hexdigest()
        with open(f"{folder}/blobs/sha256/{digest}", "wb") as file:
            file.write(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    with tarfile.open(f"{folder}/layer", "w") as layer:
        layer.add(__file__, "etc/motd")
    with open(f"{folder}/layer", "rb") as file:
        layer = blob("layer.v1.tar", file.read())
    os.unlink(f"{folder}/layer")
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}}
    manifest = {"schemaVersion": 2, "config": blob("config.v1+json", json.dumps(config).encode()), "layers": [layer]}
    for name, told in (("index.json", {"schemaVersion": 2, "manifests": [blob("manifest.v1+json", json.dumps(manifest).encode())]}),
                       ("oci-layout", {"imageLayoutVersion": "1.0.0"})):
        with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
            json.dump(told, file)


def an_image_by_skopeo(hosts):
    folder, store = (os.path.join(hosts.folder, name) for name in ("image", "store"))
    an_image(f"{folder}/made")
    os.mkdir(store)
    copy = "skopeo --insecure-policy copy -q"
    status, out, err = hosts.call(f"rdpipe host1:'cd {folder} && {copy} oci:made oci:web:1 && tar -cf - web' "
                                  f"host2:'cd {store} && tar -xf - && {copy} oci:web:1 oci:kept:1'")
    expect(status == 0 and out == b"", f"status {status}: {err}")
    was, now = (run("skopeo", "inspect", "--raw", f"oci:{path}") for path in (f"{folder}/web:1", f"{store}/kept:1"))
    layer = json.loads(was)["layers"][0]["digest"].partition(":")[2]
    expect(was == now and len(os.listdir(f"{store}/kept/blobs/sha256")) == 3, f"{was}\n{now}")
    with open(f"{store}/kept/blobs/sha256/{layer}", "rb") as file:
        expect(hashlib.sha256(file.read()).hexdigest() == layer, "the layer is another one")
    status, _, err = hosts.call(f"rdpipe host1:'cd {folder} && {copy} oci:none oci:other:1 && tar -cf - other' host2:'tar -C {store} -xf -'")
    expect(status != 0 and "host1: " in err and "none" in err, f"status {status}: {err}")


CASES = ([a_dump_between_two_databases] if os.environ.get("PIPE_POSTGRESQL") else []) + ([an_image_by_skopeo] if os.environ.get("PIPE_SKOPEO") else [])
