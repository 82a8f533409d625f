"""Every kind of benchmark as table and pictures."""

import re
import xml.etree.ElementTree as ET

import pytest

from longlens.report.bench import bench_conditions, bench_pictures, bench_table, kind, title_of
from longlens.report.results import Bench, read_file
from tests.report.sample import OPS

TEXTS = {
    "ops": OPS,
    "layer": "shape,dtype,layer,compiled,forward_backward_ms,ratio_to_softmax,hardware\n"
    '"1,1024,256,8",float32,softmax,False,3.0,1,CPU\n"1,1024,256,8",float32,LaS,False,3.3,1.1,CPU\n',
    "decode": "shape,dtype,layer,token_ms,ratio_to_softmax,cache_gb_per_s,hardware\n"
    '"8,4096,1024,16,4",bfloat16,softmax,0.1,1,900,H200\n'
    '"8,4096,1024,16,4",bfloat16,LaS,0.11,1.1,880,H200\n',
    "step": "shape,dtype,step_ms,padded_tokens_per_s,share_of_peak,first_step_s,attention_ms,"
    "matrix_ms,hardware\n"
    '"LaS, Image",bfloat16,8.5,6023529,0.23,26.5,4.1,1.9,H200\n',
    "length": "shape,dtype,causal,bound,window,forward_backward_ms,peak_mib,peak_kib_per_token,"
    "hardware\n"
    '"1,8,65536,64",bfloat16,True,1e-05,5,40.5,1200,18.75,H200\n'
    '"1,8,1048576,64",bfloat16,True,1e-05,5,9000,19200,18.75,H200\n',
}


def bench(tmp_path, text):
    (tmp_path / "rows.csv").write_text(text)
    found = read_file(tmp_path / "rows.csv")
    assert isinstance(found, Bench)
    return found


@pytest.mark.parametrize(
    ("name", "cell", "pictures"),
    [
        ("ops", "29 MiB", ["time", "memory"]),
        ("layer", "1.10 ×", ["time"]),
        ("decode", "0.11 ms", ["time"]),
        ("length", "18.8", ["time", "memory"]),
        ("step", "6,023,529", ["time"]),
    ],
)
def test_tables_and_pictures(tmp_path, name, cell, pictures):
    rows = bench(tmp_path, TEXTS[name])
    assert kind(rows) == name and {"CPU", "H200"} & set(title_of(rows).split(", "))
    table = bench_table(rows, everything=True)
    head, lines = table.head, table.rows
    assert all(len(line) == len(head) for line in lines)
    assert any(cell in line for line in lines)
    assert bench_conditions(rows)["dtype"] in ("float32", "bfloat16")
    drawn = bench_pictures(rows)
    assert [name for name, _ in drawn] == pictures
    for _, picture in drawn:
        ET.fromstring(picture)


def test_steps_of_one_run_are_told_apart_by_their_options(tmp_path):
    head = "shape,dtype,step_ms,attention_ms,options,hardware\n"
    line = '"LaS, Image",bf16,{},4,"dim=8 expansion={} mixer_options={{\'window\': 3}}",H200\n'
    rows = bench(tmp_path, head + line.format(8, 2) + line.format(9, 4.0))
    assert [line[0] for line in bench_table(rows).rows] == [
        "LaS, Image expansion=2",
        "LaS, Image expansion=4.0",
    ]
    assert bench_pictures(rows)[0][1].count("expansion=") >= 2


def test_rows_of_several_dtypes_are_told_apart(tmp_path):
    head = "shape,dtype,implementation,ratio_to_plain,hardware\n"
    line = '"8,8,2048,46",{},LaS,{},H200\n'
    rows = bench(tmp_path, head + line.format("float32", 1.5) + line.format("bfloat16", 1.2))
    assert [line[0] for line in bench_table(rows).rows] == [
        "8,8,2048,46 float32",
        "8,8,2048,46 bfloat16",
    ]
    assert {"float32", "bfloat16"} <= set(re.findall(r"\w+", bench_pictures(rows)[0][1]))


def test_other_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"rows.csv holds no rows of longlens bench: a, b"):
        kind(bench(tmp_path, "a,b\n1,2\n"))
