"""Small files that become gigabytes. As a program: open one within bounded memory, and say what came of it."""

from __future__ import annotations

import gzip
import json
import resource
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq

GROWTH_BYTES = 1 << 30  # of address space, beyond that of the program once it has imported all


def zeros(count: int, each_bytes: int) -> pa.Array:
    """An array of ``count`` values of zeros. The memory is never written to, so it is the kernel's own page of zeros."""
    offsets = pa.array([each_bytes * number for number in range(count + 1)], pa.int32())
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets.buffers()[1], pa.py_buffer(bytes(count * each_bytes))])


def page_of_zeros(path: Path, column: str = "text") -> None:
    """One page of 300 MB in a file of some kilobytes."""
    table = pa.table({column: zeros(300, 1 << 20)})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, data_page_size=1 << 31, write_batch_size=1 << 20)


def page_told_twice(path: Path) -> None:
    """300 MB again. Its header says so, then says 1 byte in an integer of 64 bits, which Thrift does not take for the page's size."""
    table, whole = pa.table({"text": zeros(75_000, 4096)}), {"data_page_size": 1 << 31, "max_rows_per_page": 1 << 20}
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_batch_size=1 << 20, **whole)
    raw = path.read_bytes()
    end = raw.index(b"\x28\xb5\x2f\xfd")  # zstd's mark: the header lies between Parquet's and this
    start = raw.index(b"\x1c", 4)  # of the statistics: they make room for what is said instead
    lie = b"\0" + b"\x06\x04\x02" + b"\x08\xc8\x01"  # the end of the inner structure, field 2, field 100: bytes that nobody knows
    room = end - start - len(lie) - 3  # a length of two bytes, and the end of the header
    padding = bytes([room & 0x7F | 0x80, room >> 7]) + bytes(room)
    path.write_bytes(raw[:start] + lie + padding + b"\0" + raw[end:])


def long_entry(path: Path, column: str = "text") -> None:
    """A dictionary of one entry of 30 MB, which each of 1,000 rows repeats: as rows, 30 GB."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["a" * (30 << 20)]))
    pq.write_table(pa.table({column: text}), path, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False)


def long_list(path: Path, lists: int = 1, use_dictionary: bool = True) -> None:
    """Lists of 70 million numbers together: of a dictionary, or each in four bytes of zeros before they are compressed."""
    count = 70_000_000
    numbers = pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(bytes(count))])
    ends = pa.array([count // lists * number for number in range(lists + 1)], pa.int32())
    table = pa.table({"text": ["a"] * lists, "numbers": pa.ListArray.from_arrays(ends, numbers)})
    pq.write_table(table, path, compression="zstd", use_dictionary=use_dictionary, write_batch_size=1)  # a page for each list


def many_rows(path: Path) -> None:
    """134 million null rows in some kilobytes. The footer is true, but no job can be made of it."""
    with pq.ParquetWriter(path, pa.schema([("text", pa.null())])) as writer:
        group = pa.table({"text": pa.nulls(1 << 24)})
        for _ in range(8):
            writer.write_table(group, row_group_size=1 << 24)


def lying_footer(path: Path) -> None:
    """77 rows; the footer says 2^30 - 1, in the row group and in the file."""
    pq.write_table(pa.table({"text": [f"row {number}" for number in range(77)]}), path, compression="none", use_dictionary=False)
    raw = path.read_bytes()
    (length,) = [int.from_bytes(raw[-8:-4], "little")]
    footer = raw[-8 - length : -8]
    true, false = bytes([77 * 2 & 0x7F | 0x80, 77 * 2 >> 7]), b"\xfe\xff\xff\xff\x07"  # zigzag varints
    lied = footer.replace(b"\x16" + true, b"\x16" + false)
    assert lied != footer
    path.write_bytes(raw[: -8 - length] + lied + len(lied).to_bytes(4, "little") + b"PAR1")


def gzipped_lines(path: Path) -> None:
    """Members of one file may follow each other."""
    path.write_bytes(gzip.compress(json.dumps({"text": "a" * 1_000_000}).encode() + b"\n") * 600)


def gzipped_line(path: Path) -> None:
    """One line of 600 MB."""
    path.write_bytes(gzip.compress(b'{"text": "') + gzip.compress(b"a" * 1_000_000) * 600 + gzip.compress(b'"}\n'))


def gzipped_table(path: Path) -> None:
    path.write_bytes(gzip.compress(b"text,id\n") + gzip.compress((b"a" * 999 + b",1\n") * 1000) * 600)


def long_line(path: Path) -> None:
    """50 MB of empty objects: as Python's objects, 1.2 GB."""
    path.write_bytes(b'{"text": [' + b"{}," * 17_000_000 + b"{}]}\n")


def many_keys(path: Path) -> None:
    path.write_bytes(b"{" + b",".join(b'"%d":0' % number for number in range(1_000_000)) + b"}\n")


def long_header(path: Path) -> None:
    """200 million columns in 200 kB."""
    path.write_bytes(gzip.compress(b"," * 1_000_000) * 200 + gzip.compress(b"\n1\n"))


def wide_header(path: Path) -> None:
    path.write_bytes(b"," * 400_000 + b"\n1\n")


def long_row(path: Path) -> None:
    """A row of 12 million cells, on as many short lines."""
    path.write_bytes(b"text\n" + b'"\n",' * 12_000_000)


def far_cell(path: Path) -> None:
    """Two cells in the corners of a sheet, which has 17 billion."""
    book = openpyxl.Workbook()
    book.active["A1"] = book.active["XFD1048576"] = "text"
    book.save(path)


def long_cell(path: Path) -> None:
    path.write_bytes(b'text,id\n"' + b"a" * 50_000_000 + b'",1\n')


def batch_of_zeros(path: Path) -> None:
    """An Arrow file of one record batch: 1.1 GB of zeros, compressed."""
    schema = pa.schema([("text", pa.binary())])
    batch = pa.record_batch([zeros(1100, 1 << 20)], schema=schema)
    with pa.ipc.new_file(path, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)


def batch_behind_an_end(path: Path) -> None:
    """The same, behind a mark that ends a stream. Arrow goes to where the footer says."""
    batch_of_zeros(path)
    raw = path.read_bytes()
    at = 16 + int.from_bytes(raw[12:16], "little")  # behind the magic number and the schema
    footer = len(raw) - 10 - int.from_bytes(raw[-10:-6], "little")
    place = raw.index(at.to_bytes(8, "little"), footer)
    moved = raw[footer:place] + (at + 8).to_bytes(8, "little") + raw[place + 8 :]
    path.write_bytes(raw[:at] + b"\xff\xff\xff\xff\0\0\0\0" + raw[at:footer] + moved)


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jsonl", b'{"text": "a"}\n' * 1_000_000)


BOMBS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a page.parquet": (page_of_zeros, "a page of column 'text' takes"),
    "a dotted page.parquet": (partial(page_of_zeros, column="Review.Text"), "a page of column 'Review.Text' takes"),
    "a page told twice.parquet": (page_told_twice, "a page of column 'text' takes"),
    "a list.parquet": (long_list, "the lists of column"),
    "a plain list.parquet": (partial(long_list, lists=2, use_dictionary=False), "the lists of column"),
    "many rows.parquet": (many_rows, "rows"),
    "a footer.parquet": (lying_footer, "slices"),
    "lines.jsonl.gz": (gzipped_lines, "over 200 times its size"),
    "a line.jsonl.gz": (gzipped_line, "line 1 is longer than 16 MiB"),
    "a table.csv.gz": (gzipped_table, "over 200 times its size"),
    "a line.jsonl": (long_line, "line 1 is longer than 16 MiB"),
    "keys.jsonl": (many_keys, "has more than 16,384 columns"),
    "a cell.csv": (long_cell, "line 2 is longer than 16 MiB"),
    "a row.csv": (long_row, "line 2 is longer than 16 MiB"),
    "a header.csv.gz": (long_header, "line 1 is longer than 16 MiB"),
    "a header.csv": (wide_header, "line 1 has more than 16,384 columns"),
    "far.xlsx": (far_cell, "cannot be read within 4 GiB of memory"),
    "a batch.arrow": (batch_of_zeros, "a record batch of 1,100 rows"),
    "a batch behind an end.arrow": (batch_behind_an_end, "a record batch of 1,100 rows"),
    "a zip.zip": (zipped, "of an unknown kind"),
    "a zip.parquet": (zipped, "is not Parquet"),
    "a zip.jsonl": (zipped, "is not"),
}


def main(path: Path) -> None:
    from connectors.errors import HarvesterError
    from connectors.open import open_source
    from jobs.config import HarvestConfig
    from jobs.plan.job import cut_slices

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + GROWTH_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        with open_source(str(path)) as source:
            cut_slices(source.row_groups(), source.row_count, HarvestConfig())
            rows = source.read(source.row_groups()[0], 0, 1)
        said = f"read {rows.num_rows}"
    except HarvesterError as error:
        said = error.message
    (peak,) = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    print(json.dumps({"said": said, "peak_bytes": int(peak) << 10}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
