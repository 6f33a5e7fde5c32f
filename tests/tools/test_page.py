"""Explain's page: complete in itself, and used as a person does, in a headless Chromium."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engine.explain import Report
from engine.tools.page import explain_page
from tests.test_explain import BETWEEN, report
from tests.tools.browser import screenshot, visit

BLOCKS = 125


def big() -> Report:
    """A thousand nodes: blocks with branches, a stretch in float64 in every tenth."""
    lines, x = [], "x"
    for b in range(BLOCKS):
        lines += [f"a{b} = Exp({x})", f"b{b} = Transpose({x})", f"c{b} = MatMul(a{b}, b{b})"]
        lines += [f"s{b} = Softmax(c{b})", f"m{b} = MatMul(s{b}, {x})"]
        if b % 10 == 5:
            lines += [f"d{b} = Cast<to = 11>(m{b})", f"q{b} = Erf(d{b})"]
            lines.append(f"e{b} = Cast<to = 1>(q{b})")
        else:
            lines += [f"d{b} = Tanh(m{b})", f"e{b} = Relu(d{b})"]
        lines.append(f"r{b} = Add(e{b}, {x})")
        x = f"r{b}"
    body = "\n".join(lines)
    return report(text=f"g (float[n,n] x) => (float[n,n] {x}) {{\n{body}\n}}", binding={"n": 16})


def data_of(page: str) -> dict[str, object]:
    """The JSON in a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    content = json.loads(found[1])
    assert isinstance(content, dict)
    return content


def test_the_page_needs_nothing_else() -> None:
    page = explain_page(report(text=BETWEEN), "between.onnx")
    assert "{{" not in page.split('id="data"')[0]
    for outside in ('src="', "@import", "url(", "fetch(", "import("):
        assert outside not in page
    assert set(re.findall(r"https?://[^\s\"'<>]+", page)) == {"http://www.w3.org/2000/svg"}
    content = data_of(page)
    assert content["title"] == "between.onnx"
    assert content["shaders"] and content["version"] == 2


def test_names_cannot_break_out_of_the_page() -> None:
    name = "</script><script>alert(1)</script>"
    page = explain_page(report(text=BETWEEN), name)
    assert data_of(page)["title"] == name
    assert "<script>alert" not in page


def test_the_drawing_has_each_node_transfer_and_group() -> None:
    found = report()
    drawing = data_of(explain_page(found, "m"))["drawing"]
    assert isinstance(drawing, dict)
    assert len(drawing["nodes"]) == len(found.nodes)
    assert [g["kernel"] for g in drawing["groups"]] == [0]
    assert {e["name"] for e in drawing["ends"]} == {"x", "u", "s"}
    moves = {(e["transfer"], e["value"], e["nbytes"]) for e in drawing["edges"] if e["transfer"]}
    assert moves == {("upload", "x", 6400), ("download", "r", 3200), ("download", "s", 3200)}
    assert [b["subgraph"] for b in drawing["bands"] if b["subgraph"] >= 0] == [0, 1]


def test_a_view_of_what_is_on_the_gpu_is_no_transfer() -> None:
    text = """g (float[n,64] x) => (float[n,64] y) {
      a = Exp(x)
      v = Unsqueeze(a, axes)
      s = Softmax(v)
      y = Squeeze(s, axes)
    }"""
    text = text.replace("y) {", "y) <int64[1] axes = {0}> {")
    found = report(text=text)
    assert {n.op_type for n in found.nodes if n.device == "view"} == {"Unsqueeze", "Squeeze"}
    drawing = data_of(explain_page(found, "m"))["drawing"]
    assert isinstance(drawing, dict)
    moves = [(e["transfer"], e["value"]) for e in drawing["edges"] if e["transfer"]]
    assert moves == [("upload", "x"), ("download", "y")]


def test_a_person_searches_picks_and_filters(tmp_path: Path) -> None:
    script = """
      const search = document.getElementById("search");
      const cards = [...document.querySelectorAll(".card")];
      const groups = document.querySelectorAll(".group[data-kernel]");
      const seen = { cards: cards.length, groups: groups.length };
      seen.bands = [...document.querySelectorAll(".band-label.near")].map((b) => b.textContent);
      seen.moves = [...document.querySelectorAll(".amount text")].map((t) => t.textContent);
      search.value = "float64 erf";
      search.dispatchEvent(new Event("input"));
      seen.found = document.getElementById("found").textContent;
      seen.hits = [...document.querySelectorAll(".card.hit .op")].map((t) => t.textContent);
      search.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
      seen.picked = document.querySelector(".card.picked .op").textContent;
      seen.panel = document.getElementById("node").textContent;
      search.value = "nothing like it";
      search.dispatchEvent(new Event("input"));
      seen.none = document.getElementById("found").textContent;
      search.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
      seen.cleared = document.querySelectorAll(".card.hit").length;
      const chip = document.querySelector('[data-device="cpu"]');
      chip.click();
      seen.hidden = document.querySelectorAll(".card.off").length;
      seen.left = document.querySelectorAll(".amount:not(.off)").length;
      chip.click();
      seen.shown = document.querySelectorAll(".card.off").length;
      const place = () => document.getElementById("world").getAttribute("transform");
      const before = place();
      document.getElementById("larger").click();
      seen.zoomed = place() !== before;
      const box = document.getElementById("drawing").getBoundingClientRect();
      const move = (kind, x) => {
        const at = { clientX: box.left + x, clientY: box.top + 50, pointerId: 1, bubbles: true };
        document.getElementById("drawing").dispatchEvent(new PointerEvent(kind, at));
      };
      const still = place();
      move("pointerdown", 10); move("pointermove", 12);
      seen.still = place() === still;
      document.getElementById("fit").click();
      const erf = cards.find((c) => c.querySelector(".op").textContent === "Erf");
      const over = { clientX: 300, clientY: 300, bubbles: true };
      erf.dispatchEvent(new PointerEvent("pointermove", over));
      const tip = document.getElementById("tip");
      seen.tip = tip.hidden ? "" : tip.textContent;
      document.querySelector(".reason .link").click();
      seen.refused = [...document.querySelectorAll(".card.hit .op")].map((t) => t.textContent);
      document.querySelector("tr[data-slow]").click();
      seen.slowest = document.querySelector(".card.picked .op").textContent;
      seen.summary = document.getElementById("summary").textContent;
      return seen;
    """
    went = visit(explain_page(report(text=BETWEEN), "between.onnx"), tmp_path, script)
    assert went.problems == []
    seen = went.found
    assert (seen["cards"], seen["groups"]) == (6, 1)
    assert [b.split(":")[0] for b in seen["bands"]] == [
        "GPU 0",
        "CPU 1",
        "GPU 2",
    ]
    assert seen["moves"] == ["▲ 25.0 KiB", "▼ 25.0 KiB", "▲ 25.0 KiB", "▼ 25.0 KiB"]
    assert seen["found"] == "1 node" and seen["hits"] == ["Erf"]
    assert seen["picked"] == "Erf"
    assert "float64[n, 64] = [100, 64]" in seen["panel"]
    assert "no kernel computes with float64" in seen["panel"]
    assert seen["none"] == "nothing" and seen["cleared"] == 0
    assert (seen["hidden"], seen["left"], seen["shown"]) == (3, 2, 0)
    assert seen["refused"] == ["Cast", "Erf", "Cast"]
    slowest = max(report(text=BETWEEN).nodes, key=lambda n: n.predicted_ms or 0)
    assert seen["slowest"] == slowest.op_type
    assert seen["zoomed"] and seen["still"]
    assert seen["tip"].startswith("Erf e") and "predicted" in seen["tip"]
    assert "50 %of 6 computing nodes on the GPU" in seen["summary"]
    assert "would remove 2 transfers (50.0 KiB)" in seen["summary"]
    assert "chosen: the GPU wherever it can" in seen["summary"]


def test_a_kernel_shows_its_nodes_and_its_shader(tmp_path: Path) -> None:
    script = """
      const group = document.querySelector(".group[data-kernel='0']");
      const cards = [...document.querySelectorAll(".card")];
      const card = cards.find((c) => c.textContent.startsWith("Add"));
      card.dispatchEvent(new MouseEvent("click", { bubbles: true }));
      const section = document.getElementById("node");
      const others = [...section.querySelectorAll(".link")].map((b) => b.textContent);
      const details = section.querySelector("details");
      details.open = true;
      details.dispatchEvent(new Event("toggle"));
      const inside = (a, b) =>
        a.x >= b.x && a.right <= b.right && a.y >= b.y && a.bottom <= b.bottom;
      return {
        others, text: section.textContent, wgsl: section.querySelector("pre").textContent,
        inside: inside(card.getBoundingClientRect(), group.getBoundingClientRect()),
      };
    """
    went = visit(explain_page(report(), "m"), tmp_path, script)
    assert went.problems == []
    assert "MatMul + Add + Relu" in went.found["text"]
    assert any(other.startswith("MatMul ") for other in went.found["others"])
    assert "fn main(" in went.found["wgsl"] and went.found["inside"]


def test_the_address_can_name_a_node(tmp_path: Path) -> None:
    script = "return document.querySelector('.card.picked .op')?.textContent ?? null;"
    page = explain_page(report(text=BETWEEN), "m")
    assert visit(page, tmp_path, script, "#node=e").found == "Erf"
    assert visit(page, tmp_path, script, "#node=absent").found is None


@pytest.mark.slow
def test_a_thousand_nodes_are_drawn_within_seconds(tmp_path: Path) -> None:
    found = big()
    assert len(found.nodes) == 8 * BLOCKS + 12 and len(found.subgraphs) == 25
    before = time.process_time()
    page = explain_page(found, "big.onnx")
    assert time.process_time() - before < 5
    assert len(page) < 4_000_000
    script = """
      const before = performance.now();
      const search = document.getElementById("search");
      search.value = "softmax";
      search.dispatchEvent(new Event("input"));
      const boxes = [...document.querySelectorAll(".card")].map((c) => c.getBoundingClientRect());
      const stage = document.getElementById("stage").getBoundingClientRect();
      return {
        cards: boxes.length, found: document.getElementById("found").textContent,
        inside: boxes.every(
          (b) => b.left >= stage.left && b.right <= stage.right && b.bottom <= stage.bottom),
        ms: performance.now() - before,
        whole: performance.getEntriesByType("navigation")[0].domInteractive,
      };
    """
    went = visit(page, tmp_path, script)
    assert went.problems == []
    assert went.found["cards"] == len(found.nodes)
    assert went.found["found"] == f"{BLOCKS} nodes" and went.found["inside"]
    assert went.found["ms"] < 2000 and went.found["whole"] < 8000


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_a_picture_of_it_shows_both_devices(tmp_path: Path, dark: bool) -> None:
    picture = screenshot(explain_page(report(text=BETWEEN), "m"), tmp_path, dark)
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    light = pixels.mean()
    assert light < 90 if dark else light > 200
    for colour in (0x17382A, 0x44291A) if dark else (0xE0F4E8, 0xFDEADB):
        wanted = [colour >> 16, colour >> 8 & 255, colour & 255]
        assert (np.abs(pixels - wanted).max(axis=2) <= 2).sum() > 500, hex(colour)


def test_a_view_inside_a_kernel_is_drawn_inside_it() -> None:
    text = """g (float[4,6,64] x) => (float[2,4,6,32] y) <int64[4] shape = {4, 6, 2, 32}> {
      s = Softmax(x)
      v = Reshape(s, shape)
      y = Transpose<perm = [2, 0, 1, 3]>(v)
    }"""
    found = report(text=text)
    assert [(n.op_type, n.device, n.kernels) for n in found.nodes] == [
        ("Softmax", "gpu", (0,)),
        ("Reshape", "view", ()),
        ("Transpose", "gpu", (0,)),
    ]
    drawing = data_of(explain_page(found, "m"))["drawing"]
    assert isinstance(drawing, dict)
    (group,) = drawing["groups"]
    tops = [y for _, y in drawing["nodes"]]
    assert tops == sorted(tops)
    assert all(group["y"] < y < group["y"] + group["height"] for y in tops)
