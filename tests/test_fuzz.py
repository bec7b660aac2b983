"""Five hundred senseless command lines: one line and exit code 2, or a run."""

import contextlib
import io
import sys
import types

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fuprune
from fuprune import config as config_lib
from fuprune import main as main_lib
from tests.settings import quickstart

KEYS = sorted(config_lib.flatten(config_lib.default()))
SENSIBLE = {key: [value] for key, value in config_lib.flatten(quickstart()).items()}
EXTREMES = (
    *("-1", "0", "1", "1e400", "-1e-400", "nan", "inf", "-inf", "9" * 40, "0x10"),
    *("", " ", ",", "[]", "{}", "()", "None", "True", "null", "'", '"', "\\", "\x00"),
    *("../../etc/passwd", "/dev/null", "$(id)", "`id`", "{0.__class__}", "%s%n"),
    *("ünïcödé", "数字", "\u202e", "😀", "a" * 5000, "(" * 500, "1,2,3", "9,9", "-9"),
)

anything = st.one_of(
    st.sampled_from(EXTREMES),
    st.text(max_size=20),
    st.integers().map(str),
    st.floats().map(str),
)
a_key = st.one_of(st.sampled_from(KEYS), st.text(max_size=12), st.just("train.round"))
an_override = st.tuples(a_key, anything).map(
    lambda pair: f"--config.{pair[0]}={pair[1]}"
)
a_sensible_one = st.sampled_from(KEYS).flatmap(
    lambda key: st.sampled_from(SENSIBLE[key]).map(lambda v: f"--config.{key}={v}")
)
a_flag = st.one_of(
    an_override,
    an_override,
    a_sensible_one,
    st.tuples(
        st.sampled_from(["num_processes", "process_id", "coordinator"]), anything
    ).map(lambda pair: f"--{pair[0]}={pair[1]}"),
    anything,
)


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flags=st.lists(a_flag, max_size=4))
def test_any_command_line_runs_or_ends_in_one_line(flags, tmp_path, monkeypatch):
    """Never a traceback, never a hang, never a workdir with something in it."""
    asked = []
    stand_in = types.ModuleType("fuprune.run.experiment")
    stand_in.run = lambda config, workdir, **options: asked.append(config)
    monkeypatch.setitem(sys.modules, "fuprune.run.experiment", stand_in)
    monkeypatch.setattr(fuprune, "experiment", stand_in, raising=False)
    monkeypatch.chdir(tmp_path)
    errors, output = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
        code = main_lib.main(["fuprune", "--workdir", str(tmp_path / "w"), *flags])
    lines = errors.getvalue().strip().splitlines()
    if asked:
        assert code == 0
        config_lib.validate(asked[0])
    elif {"--help", "-h", "--version"} & set(flags):
        assert code == 0
    else:
        assert code == 2, (flags, errors.getvalue())
        assert len(lines) == 1 and lines[0].startswith("fuprune: error: "), lines
        assert len(lines[0]) < 1500
        assert not any((tmp_path / "w").glob("*"))
