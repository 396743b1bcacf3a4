# SPDX-License-Identifier: Apache-2.0
"""Recipes of the guide that need more than this host has by itself: two databases, where PostgreSQL is installed."""
import contextlib
import glob
import os
import pwd
import shutil
import tempfile

from cases import expect
from hosts import run, wait_for


@contextlib.contextmanager
def database(folder, name, programs):
    """A PostgreSQL of its own, reached by a socket in the folder that is given back."""
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
    """All that the database holds, as text; lines with a random number are left out."""
    told = run(f"{programs}/pg_dump", "-h", place, "-U", "postgres", "shop")
    return [line for line in told.splitlines() if not line.startswith(("\\restrict", "\\unrestrict", "--"))]


def a_dump_between_two_databases(hosts):
    programs = max(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[-2]))
    folder = tempfile.mkdtemp(prefix="beamway-databases-")
    os.chmod(folder, 0o755)
    expect(pwd.getpwnam("postgres"), "no user postgres")
    try:
        with database(folder, "one", programs) as one, database(folder, "two", programs) as two:
            run(f"{programs}/createdb", "-h", one, "-U", "postgres", "shop")
            run(f"{programs}/psql", "-h", one, "-U", "postgres", "-q", "-v", "ON_ERROR_STOP=1", "shop", "-c", """
                create table goods (id serial primary key, name text not null, price numeric(10, 2), picture bytea);
                insert into goods (name, price, picture) select 'good ' || n, n / 7.0, decode(md5(n::text), 'hex') from generate_series(1, 20000) n;
                create index on goods (name); create view dear as select * from goods where price > 1000""")
            dump = f"rdpipe host1:'{programs}/pg_dump -Fc -h {one} -U postgres %s' host2:'{programs}/pg_restore --create -h {two} -U postgres -d postgres'"
            status, out, err = hosts.call(dump % "shop")
            expect(status == 0 and out == b"", f"status {status}: {err}")
            was, now = text_of(one, programs), text_of(two, programs)
            expect(len(was) > 20_000 and was == now, f"{len(was)} lines and {len(now)}")
            status, _, err = hosts.call(dump % "none")
            expect(status != 0 and 'database "none" does not exist' in err and "host1: " in err, f"status {status}: {err}")
    finally:
        wait_for("the databases have ended", lambda: not glob.glob(f"{folder}/*/data/postmaster.pid"))
        shutil.rmtree(folder)


CASES = [a_dump_between_two_databases] if os.environ.get("PIPE_POSTGRESQL") else []
