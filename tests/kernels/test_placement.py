"""Both ways of moving channels, vectors and plain loops, on the machine at hand."""

import subprocess
from pathlib import Path

import pytest

from fuprune.kernels import build, library

PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include "placement.h"

int main() {
  unsigned seed = 1;
  for (int64_t width = 1; width < 70; ++width) {
    for (int trial = 0; trial < 8; ++trial) {
      std::vector<int64_t> places;
      for (int64_t c = 0; c < width; ++c) {
        if (rand_r(&seed) % 8 > trial || (c == width - 1 && places.empty())) {
          places.push_back(c);
        }
      }
      const int64_t channels = places.size(), pixels = 1 + rand_r(&seed) % 5;
      const fuprune::Placement placement(places.data(), channels, width);
      std::vector<float> narrow(pixels * channels), wide(pixels * width + 1, -1.0f);
      for (auto& value : narrow) value = 1 + rand_r(&seed) % 1000;
      placement.Widen(narrow.data(), pixels, wide.data());
      std::vector<float> expected(pixels * width + 1, 0.0f);
      for (int64_t pixel = 0; pixel < pixels; ++pixel) {
        for (int64_t c = 0; c < channels; ++c) {
          expected[pixel * width + places[c]] = narrow[pixel * channels + c];
        }
      }
      expected.back() = -1.0f;  // nothing is written past the end
      if (wide != expected) return std::printf("widened wrongly to %ld", width), 1;
      std::vector<float> back(pixels * channels + 1, -1.0f);
      placement.Narrow(wide.data(), pixels, back.data());
      narrow.push_back(-1.0f);
      if (back != narrow) return std::printf("narrowed wrongly from %ld", width), 1;
    }
  }
}
"""


@pytest.mark.skipif(not library.available(), reason=str(library.why_not()))
@pytest.mark.parametrize("flags", [(), ("-DFUPRUNE_PLAIN_LOOPS",)], ids=["", "plain"])
def test_channels_arrive_where_they_belong_and_come_back(tmp_path, flags):
    source, program = tmp_path / "moves.cc", tmp_path / "moves"
    source.write_text(PROGRAM)
    folder = Path(library.__file__).parent
    command = [*build.compiler(), "-std=c++17", "-O2", f"-I{folder}", *flags]
    subprocess.run([*command, str(source), "-o", str(program)], check=True)
    result = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")
