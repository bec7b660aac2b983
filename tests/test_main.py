import contextlib
import io
import subprocess
import sys
import types

import hypothesis
import pytest
from hypothesis import strategies as st

import fuprune
from fuprune import config as config_lib
from fuprune import main as main_lib
from fuprune.errors import FupruneError
from tests.settings import quickstart


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """Stands in for the experiment and records what it was asked to run."""
    calls = []

    def run(config, workdir, **options):
        calls.append((config, workdir, options))

    stand_in = types.ModuleType("fuprune.run.experiment")
    stand_in.run = run
    monkeypatch.setitem(sys.modules, "fuprune.run.experiment", stand_in)
    monkeypatch.setattr(fuprune, "experiment", stand_in, raising=False)
    monkeypatch.delenv("FUPRUNE_TRACEBACK", raising=False)
    monkeypatch.chdir(tmp_path)
    return calls


def run(*arguments):
    return main_lib.main(["fuprune", *map(str, arguments)])


def test_without_config_the_quickstart_runs(ran, tmp_path):
    assert run() == 0
    ((config, workdir, options),) = ran
    assert config == quickstart()
    assert workdir.samefile(tmp_path / "runs" / "quickstart")
    assert options.pop("command")[-1] == "fuprune.main"
    assert options == {"coordinator": "", "num_processes": 0, "process_id": -1}


@pytest.mark.parametrize(
    ("flags", "limit"),
    [
        ((), 22),
        (("--config.data.name=digits",), 22),
        (("--config.data.name=npz:own.npz",), 0),
        (("--config.data.name=npz:own.npz", "--config.data.limit=5"), 5),
        (("--config", "quickstart", "--config.data.name=mnist"), 0),
    ],
)
def test_own_data_are_not_cut_to_the_quickstarts_few(ran, flags, limit):
    assert run(*flags) == 0
    assert ran[0][0].data.limit == limit


def test_config_file_with_argument_and_overrides(ran, repository, tmp_path):
    file = repository / "configs" / "cifar10_resnet.py"
    code = run(
        "--config.partition.bias=0.45",
        "--config",
        f"{file}:56",
        "--config.train.rounds",
        7,
        "--noconfig.train.augment",
        "--config.prune.recapture=false",
        "--config.fine_tune.target_accuracy",
        "-1",
        "--config.unlearn.classes",
        "0,9",
        "--config.unlearn.methods=retrain,fisher",
        "--coordinator=host:1234",
        "--num_processes=2",
        "--process_id=1",
    )
    assert code == 0
    ((config, workdir, options),) = ran
    assert config.model.name == "resnet56"
    assert config.partition.bias == 0.45
    assert config.train.rounds == 7
    assert config.train.augment is False
    assert config.prune.recapture is False
    assert config_lib.classes(config) == (0, 9)
    assert config_lib.methods(config) == ("retrain", "fisher")
    assert workdir.samefile(tmp_path / "runs" / "cifar10_resnet_56")
    assert "host:1234" in " ".join(options.pop("command"))
    assert options == {
        "coordinator": "host:1234",
        "num_processes": 2,
        "process_id": 1,
    }


BAD_INPUT = [
    (["--config=nope.py"], "there is no config file 'nope.py'"),
    (["--config"], "argument --config: expected one argument"),
    (["--config.trian.rounds=3"], "did you mean train.rounds?"),
    (["--config.foo=1"], "unknown key 'foo'; allowed: seed, phases"),
    (["--config=cifar10_resnet:57"], "model.name is 'resnet57'; allowed: resnet8, "),
    (["--config=quickstart:56"], "failed: TypeError"),
    (["--config.train=3"], "train is a group of keys"),
    (["--config.train.rounds=abc"], "train.rounds is 'abc'; allowed: a valid int"),
    (["--noconfig.train.rounds"], "unexpected argument '--noconfig.train.rounds'"),
    (["--config.train.cohort=21"], "at most partition.clients, which is 10"),
    (["--config.unlearn.classes=" + "-" * 100_000 + "1"], "allowed: class numbers"),
    (
        ["--config.unlearn.classes=truck", "--config.data.name=cifar10"],
        "such as 9 or 0,9. In cifar10: 0 airplane, 1 automobile, 2 bird, 3 cat, ",
    ),
    (["--config.data.name=\x1b[31mé\n"], "data.name is '\\x1b[31m\\xe9\\n'"),
    (["--wrokdir=x"], "unexpected argument '--wrokdir=x'; did you mean --workdir?"),
    (["--num_processes=two"], "--num_processes: invalid int value: 'two'"),
    (["--workdir=a.txt"], "File exists"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT)
def test_bad_input_is_one_line_and_exit_code_two(
    ran, capsys, tmp_path, arguments, message
):
    (tmp_path / "a.txt").write_text("")
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and not ran
    assert err.startswith("fuprune: error: ") and err.count("\n") == 1
    assert err[:-1].isprintable(), err
    assert message in err
    assert not (tmp_path / "runs").exists(), (
        "a workdir was made for a run that cannot be"
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = (", "failed: SyntaxError"),
        ("def get_config(): return None", "the configuration is a NoneType"),
        ("import nowhere_to_be_found", "failed: ModuleNotFoundError"),
        (
            "from fuprune.config import default\n"
            "def get_config():\n"
            "    config = default()\n"
            "    config.train.learnin_rate = 0.1\n"
            "    return config\n",
            "did you mean train.learning_rate?",
        ),
    ],
)
def test_config_file_that_does_not_work_is_one_line(
    ran, capsys, tmp_path, source, message
):
    file = tmp_path / "mine.py"
    file.write_text(source)
    assert run("--config", file) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1 and not ran


def stand_in_error(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(sys.modules["fuprune.run.experiment"], "run", fail)


def test_errors_meant_for_people_are_one_line(ran, monkeypatch, capsys):
    from fuprune.data.dataset import DataUnavailableError

    for error in (
        FupruneError("a message"),
        DataUnavailableError("a\n  message"),
        OSError(28, "a message"),
    ):
        stand_in_error(monkeypatch, error)
        assert run() == 2
        assert "a message" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ValueError("bug"), TypeError("bug"), OSError("bug")])
def test_bug_keeps_its_traceback(ran, monkeypatch, error):
    stand_in_error(monkeypatch, error)
    with pytest.raises(type(error), match="bug"):
        run()


@pytest.mark.parametrize("flags", [(), ("--config", "cifar10_resnet:56")])
def test_help_shows_each_key_with_its_use_and_the_value_it_would_have(
    ran, capsys, flags
):
    assert run("--help", *flags, "--config.train.momentum=0.5") == 0
    lines = capsys.readouterr().out.splitlines()
    config = config_lib.load_config(flags[-1] if flags else "quickstart")[1]
    config.train.momentum = 0.5
    assert "train: federated training: pre-training and retraining" in lines
    text = " ".join(" ".join(lines).split())
    for key, value in config_lib.flatten(config).items():
        use = config_lib.KEYS[key].description
        assert " ".join(f"{key} = {value!r} {use}".split()) in text
    assert "stop at this" in text and "[fed_avg, fed_sgd]" in text
    assert max(map(len, lines)) <= 88 and not ran


def test_version_is_that_of_the_package(ran, capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"fuprune {fuprune.__version__}\n"
    assert not ran


def test_nothing_starts_a_device_before_the_run(repository):
    """A run chooses devices and joins other processes before JAX looks for any."""
    source = (
        "import sys; from fuprune.main import main; "
        "code = main(['fuprune', '--help']); "
        "from jax._src import xla_bridge; "
        "assert not xla_bridge.backends_are_initialized(); sys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", source], cwd=repository, check=True)


EXTREMES = (
    *("-1", "0", "1e400", "nan", "-inf", "9" * 40, "", ",", "[]", "None", "True", "'"),
    *("\x00", "../../etc/passwd", "{0.__class__}", "数字", "\u202e", "a" * 5000, "9,9"),
)


@hypothesis.settings(
    max_examples=150,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
    st.sampled_from(["", "--workdir", "--num_processes"])
    | st.sampled_from(sorted(config_lib.KEYS)).map("--config.{}".format),
    st.sampled_from(EXTREMES) | st.text(max_size=9) | st.integers().map(str),
)
def test_any_command_line_runs_or_ends_in_one_line(ran, tmp_path, flag, value):
    """Never a traceback, never a hang."""
    ran.clear()
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = run(f"--workdir={tmp_path}", f"{flag}={value}")
    assert code == (0 if ran else 2)
    lines = errors.getvalue().splitlines()
    assert ran or (len(lines) == 1 and len(lines[0]) < 1500), lines
