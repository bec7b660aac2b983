"""The table of configuration keys: name, default, what is allowed, one comment each.

Defaults, checks and `--help` are all made from it by `fuprune.config`; a key is written
here and nowhere else. The defaults are the paper's setting for CIFAR-10 and ResNet20.
"""

import math
from typing import Any, NamedTuple

from fuprune.config.kinds import (
    Allowed,
    at_most,
    between,
    matching,
    numbers,
    one_of,
    some_of,
    whole_numbers,
    within,
)
from fuprune.unlearning.methods import METHODS

PHASES = ("pretrain", "unlearn", "audit", "report")
MODELS = (
    *(f"resnet{depth}" for depth in (8, 20, 32, 44, 56)),
    *(f"vgg{depth}" for depth in (11, 13, 16, 19)),
)
AUDIT_TESTS = (
    *("accuracy", "membership", "shadow", "likelihood_ratio"),
    *("unlearned_shadow", "difference", "interpolated"),
    *("probe", "relearn", "distance", "weights"),
)


class Key(NamedTuple):
    """One key of the configuration."""

    name: str  # without its section, until `_section` puts it in front
    default: Any
    allowed: Allowed
    comment: str


class Section(NamedTuple):
    """Keys that belong together."""

    name: str  # "" for keys at the top
    comment: str
    keys: tuple[Key, ...]


def _section(name: str, comment: str, *rows: tuple) -> Section:
    prefix = f"{name}." if name else ""
    return Section(name, comment, tuple(Key(prefix + row[0], *row[1:]) for row in rows))


SWITCH = within(lambda value: True, "True or False")
COUNT = between(0, 2**31 - 1)
ONE_OR_MORE = between(1, 2**31 - 1)
CLIENTS, CLIENTS_OR_0 = between(1, 10_000_000), between(0, 10_000_000)
MODEL_COUNT = between(1, 1000)
BATCH = between(1, 65_536)
STEPS = between(1, 1_000_000)
SHARE = between(0, 1)
SECONDS = between(1, 86_400)
EVEN = within(lambda value: value in range(0, 1001, 2), "0 to 1000, even")
NOT_NEGATIVE = within(lambda value: 0 <= value < math.inf, "0 or more")
POSITIVE = within(lambda value: 0 < value < math.inf, "more than 0")
BELOW_ONE = within(lambda value: 0 <= value < 1, "0 or more and less than 1")
RATE_OR_AUTO = within(
    lambda value: value == "auto" if isinstance(value, str) else 0 <= value < 1,
    "0 or more and less than 1, or auto",
)._replace(is_list=True)  # a number or a word
INSIDE_ONE = within(lambda value: 0 < value < 1, "more than 0 and less than 1")
RATE = at_most(1000)
SCHEDULE = one_of("constant", "cosine", "warmup_cosine")
OPTIMIZER = one_of("sgd", "adam")
LINE = r"[^\x00-\x1f]"
PATH = matching(f"{LINE}*", "a path without control characters")
DATASET = matching(
    r"[a-z][a-z0-9_]*(/[A-Za-z0-9_.-]+)?(:\d+\.\d+\.\d+)?"
    rf"|(npz|folder):{LINE}+|hf:\S+",
    "digits, cifar10, cifar100, mnist, fashion_mnist or another TFDS name in lower "
    "case, such as emnist/letters; or npz:PATH, folder:PATH, hf:NAME",
)
CLASSES = whole_numbers("class numbers, each once, such as 9 or 0,9", or_nothing=True)
CLIENT_IDS = whole_numbers(
    "client numbers, each once, such as 3 or 3,17, or nothing", or_nothing=True
)
EPSILONS = numbers(
    lambda value: 1e-6 <= value <= 1e6,
    "numbers from 1e-06 to 1e+06, each once, such as 0.5,1,2,4,8, or nothing",
    or_nothing=True,
)
RATES = numbers(
    lambda value: 0 < value <= 1000,
    "numbers more than 0 and at most 1000, each once, such as 0.003,0.01; or nothing",
    or_nothing=True,
)
AMOUNTS = numbers(
    lambda value: value in range(1, 1_000_001),
    "whole numbers from 1 to 1000000, each once, such as 10,100",
)
NETWORK = matching(
    rf"{'|'.join(MODELS)}|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*",
    f"{', '.join(MODELS)}, or package.module:factory",
)

# A table reads better by row than by argument.
# fmt: off
SECTIONS = (
    _section("", "the run",
        ("seed", 0, COUNT, "all random choices of the run derive from it"),
        ("phases", "all", some_of(*PHASES),
         "which phases to run, such as unlearn,report"),
    ),
    _section("data", "the images",
        ("name", "cifar10", DATASET,
         "a TFDS name, digits, npz:FILE, folder:PATH or hf:NAME"),
        ("dir", "", PATH,
         "directory of the datasets; '' is $TFDS_DATA_DIR or TFDS's default"),
        ("limit", 0, COUNT, "first n training images of each class; 0 uses all"),
        ("test_limit", 0, COUNT, "first n test images of each class; 0 uses all"),
        ("validation", 0.1, BELOW_ONE,
         "share of each client's images held out for targets and early stops"),
        ("choose_on", "validation", one_of("validation", "test"),
         "images that decide targets and early stops; the paper uses the test set"),
        ("normalise", "constants", one_of("constants", "federated", "central"),
         "source of the mean and deviation of colours: published constants, sums that "
         "clients send, or all training images"),
    ),
    _section("partition", "how the training images are dealt to clients",
        ("kind", "bias",
         one_of("bias", "dirichlet", "iid", "pathological", "natural", "file"),
         "how to split; bias is the paper's q, natural follows a column of the data"),
        ("clients", 100, CLIENTS, "K, the number of clients"),
        ("bias", 0.1, SHARE,
         "q: 1 / number of classes is IID, 1 is one class per client"),
        ("alpha", 0.5, at_most(1e6),
         "for dirichlet: smaller values are more uneven"),
        ("classes_per_client", 2, ONE_OR_MORE,
         "for pathological: the number of classes per client"),
        ("column", "client", matching(f"{LINE}+", "the name of a column"),
         "for natural: the column that names the client of each image"),
        ("file", "", PATH, "for file: lines of image numbers, one line per client"),
    ),
    _section("model", "the network",
        ("name", "resnet20", NETWORK,
         "a built-in network, or package.module:factory for your own"),
        ("norm", "batch", one_of("batch", "group"), "normalisation layers"),
        ("load", "", PATH, "a saved model to start from; '' pre-trains one"),
    ),
    _section("train", "federated training: pre-training and retraining",
        ("algorithm", "fed_sgd", one_of("fed_avg", "fed_sgd"),
         "fed_sgd averages one gradient per client in each round"),
        ("rounds", 2000, COUNT, "rounds of pre-training and of retraining"),
        ("cohort", 25, CLIENTS, "clients per round"),
        ("local_epochs", 1, between(1, 10_000), "for fed_avg: E, local epochs"),
        ("local_steps", 0, COUNT,
         "for fed_avg: at most this many local steps per client and round; 0 takes all "
         "of local_epochs"),
        ("batch_size", 128, between(0, 1_000_000),
         "images per local step; in fed_sgd, 0 uses all images of a client"),
        ("optimizer", "sgd", OPTIMIZER,
         "used by clients in fed_avg, and by the server in fed_sgd"),
        ("learning_rate", 0.1, RATE, "learning rate of that optimizer, at its peak"),
        ("momentum", 0.9, BELOW_ONE, "momentum of sgd"),
        ("nesterov", True, SWITCH, "Nesterov momentum, for sgd"),
        ("weight_decay", 5e-4, between(0, 1000),
         "L2 penalty, added to the gradient (decoupled for adam)"),
        ("schedule", "cosine", SCHEDULE, "learning rate over rounds; cosine ends at 0"),
        ("warmup_rounds", 0, COUNT, "for warmup_cosine: rounds of warm-up"),
        ("server_optimizer", "sgd", OPTIMIZER, "applies the mean update of fed_avg"),
        ("server_learning_rate", 1.0, RATE,
         "learning rate of that optimizer; with sgd, 1 is the plain mean; with adam, "
         "it follows the schedule of the clients' rate"),
        ("bn", "aggregate", one_of("aggregate", "local", "recalibrate"),
         "what happens to the clients' BatchNorm statistics"),
        ("augment", True, SWITCH, "random crops and flips"),
        ("label_smoothing", 0.0, BELOW_ONE, "smoothing of the labels in the loss"),
        ("dropout_rate", 0.0, BELOW_ONE,
         "probability that a client drops out of a round"),
        ("aggregation", "mean",
         one_of("mean", "clipped_mean", "median", "trimmed_mean"),
         "how the clients' updates are combined"),
        ("clip_norm", 10.0, POSITIVE, "for clipped_mean: the largest L2 norm"),
        ("trim", 0.1,
         within(lambda value: 0 <= value < 0.5, "0 or more and less than 0.5"),
         "for trimmed_mean: the share dropped at each end"),
        ("max_update_norm", 0.0, NOT_NEGATIVE,
         "updates with a larger L2 norm are rejected; 0 accepts all"),
        ("min_participants", 1, CLIENTS,
         "a round with fewer valid updates is repeated"),
        ("target_accuracy", 0.0, SHARE, "stop at this accuracy; 0 runs every round"),
        ("evaluate_every", 20, ONE_OR_MORE, "rounds between evaluations"),
        ("checkpoint_every", 100, ONE_OR_MORE, "rounds between checkpoints"),
        ("checkpoint_keep", 2, MODEL_COUNT,
         "checkpoints kept per phase; with 2 or more, there is one to fall back on"),
        ("history_bytes", 0, between(0, 2**63 - 1),
         "for amnesiac: bytes of memory to keep updates in; 0 keeps none"),
        ("history_interval", 0, COUNT,
         "for fed_eraser: keep the models of every n-th round on disk; 0 keeps none"),
        ("history_disk", 2**34, between(1, 2**63 - 1),
         "for fed_eraser: bytes on disk; a run that needs more does not start"),
    ),
    _section("unlearn", "what is forgotten, and how",
        ("methods", "class_pruning,retrain", some_of(*METHODS),
         "methods to run, in this order; all skips those that lack a history"),
        ("method", "", some_of(*METHODS, or_nothing=True)._replace(choices=()),
         "a single method, in place of unlearn.methods"),
        ("classes", 9, CLASSES,
         "classes to forget, in this order: 9, '0,9' or (0, 9); the default is ignored "
         "if clients or examples are given"),
        ("clients", "", CLIENT_IDS, "clients to forget, such as '3,17'"),
        ("examples", "", PATH,
         "a file with the positions of the training images to forget"),
        ("retrain_seeds", 1, MODEL_COUNT,
         "how many models to retrain; the audit uses their spread"),
        ("retrain_first", 1, MODEL_COUNT,
         "seed of the first of them, so that several runs can share the work"),
        ("participants", 0, CLIENTS_OR_0,
         "number of clients whose images a method reads; 0 means train.cohort"),
    ),
    _section("prune", "class_pruning, the paper's method",
        ("rate", 0.05, RATE_OR_AUTO,
         "R, the share of channels to cut for each class; auto tries up to eight for "
         "the smallest that forgets"),
        ("score", "tf_idf", one_of("tf_idf", "contrast"),
         "the paper's TF-IDF, or how much more the class activates a channel than the "
         "others do"),
        ("then", "remove", one_of("remove", "reset"),
         "remove the cut channels, as in the paper, or let them start afresh"),
        ("scope", "global", one_of("global", "layer", "balanced"),
         "cut R of all channels, R of each layer, or R of all channels with scores "
         "scaled by the width of their layer"),
        ("order", "highest", one_of("highest", "lowest", "random"),
         "which TF-IDF scores are cut first; the paper cuts the highest"),
        ("min_channels", 1, between(1, 4096), "fewest channels that a layer keeps"),
        ("idf", "paper", one_of("paper", "released"),
         "Eq. 7, or as in the authors' code"),
        ("weighting", "examples", one_of("examples", "clients"),
         "how clients' statistics are weighted"),
        ("surgery", "compact", one_of("compact", "mask"),
         "compact removes channels; mask zeroes them"),
        ("dense", False, SWITCH,
         "also cut hidden units of dense layers, in networks of your own"),
        ("recapture", True, SWITCH, "collect statistics again after each class's cut"),
        ("capture_clients", 0, CLIENTS_OR_0,
         "number of clients that send statistics; 0 means unlearn.participants"),
        ("auto_images", 6, between(1, 10_000),
         "for rate=auto: images of the class, and others, that each of these clients "
         "answers on per try"),
        ("auto_level", 0.02, BELOW_ONE,
         "for rate=auto: share of right answers at which the class counts as unknown"),
    ),
    _section("privacy", "privacy of the class statistics that clients send",
        ("secure_sum", False, SWITCH, "send the statistics under pairwise masks"),
        ("epsilon", 0.0, NOT_NEGATIVE,
         "epsilon of differential privacy; 0 adds no noise"),
        ("delta", 1e-5, INSIDE_ONE, "delta of differential privacy"),
        ("clip", 1.0, POSITIVE,
         "L2 bound on one example's activations, used if epsilon is set"),
        ("min_count", 0, COUNT, "classes with fewer examples are suppressed"),
        ("curve", "", EPSILONS,
         "epsilons to cut with and compare, such as '0.5,1,2,4,8'"),
        ("curve_fine_tune", False, SWITCH, "also fine-tune after each of these cuts"),
    ),
    _section("fine_tune", "training on what remains, for the methods that need it",
        ("rounds", 200, COUNT, "maximum number of rounds"),
        ("target_accuracy", -1.0, between(0, 1, or_else=-1),
         "R-set accuracy to reach; -1 is the raw model's, 0 sets no target"),
        ("stop_at_target", True, SWITCH,
         "stop at the target, as in the paper; False runs every round"),
        ("learning_rate", 0.0, between(0, 1000), "0 means train.learning_rate"),
        ("schedule", "constant", SCHEDULE, "learning rate over rounds"),
        ("warmup_rounds", 0, COUNT, "for warmup_cosine: rounds of warm-up"),
        ("evaluate_every", 1, ONE_OR_MORE, "rounds between evaluations"),
        ("seeds", 1, MODEL_COUNT,
         "how often the methods of fine_tune.seeded are run, to show the spread"),
        ("seeded", "class_pruning", some_of(*METHODS), "methods with several seeds"),
        ("distill_weight", 0.0, SHARE,
         "share of the trained model's own answers in the loss, its forgotten classes "
         "left out; 0 learns from the labels alone"),
        ("distill_temperature", 1.0, POSITIVE, "temperature of these answers"),
    ),
    _section("fisher", "options of fisher",
        ("variant", "golatkar", one_of("golatkar", "paper"), "noise F^-1/2, or Eq. 1"),
        ("alpha", 1e-6, POSITIVE, "scale of the noise"),
        ("max_variance", 1e-3, POSITIVE,
         "upper bound on the noise variance of a weight"),
        ("reset_row", True, SWITCH,
         "for golatkar: reset the forgotten classes' rows of the head"),
        ("max_examples", 0, COUNT,
         "retained images used, over all clients; 0 uses all"),
        ("damping", 1.0, POSITIVE, "for paper: added to F before it is inverted"),
        ("chunk", 8, BATCH, "images whose gradients are in memory at once"),
    ),
    _section("influence", "options of influence",
        ("damping", 0.03, POSITIVE, "added to the Hessian's diagonal"),
        ("iterations", 20, between(1, 100_000),
         "maximum number of conjugate gradient steps"),
        ("tolerance", 1e-3, INSIDE_ONE, "relative residual at which these steps end"),
        ("max_examples", 0, COUNT,
         "retained images used, over all clients; 0 uses all"),
    ),
    _section("ascent", "options of ascent",
        ("rounds", 10, COUNT,
         "maximum number of rounds of ascent on the forgotten images"),
        ("learning_rate", 0.1, RATE, "learning rate of the ascent"),
        ("loss_cap", 5.0, POSITIVE, "loss on the forgotten images at which it stops"),
    ),
    _section("fed_eraser", "options of fed_eraser",
        ("rate", 0.5, at_most(1),
         "r: the share of local epochs, or of fed_sgd's images, in a replayed round"),
        ("variant", "paper", one_of("paper", "released"),
         "step lengths from the model of round t, or of t + 1 as in the released code"),
    ),
    _section("sisa", "options of sisa",
        ("shards", 5, CLIENTS, "groups of clients, each with a network of its own"),
        ("slices", 2, between(1, 1000),
         "R, the slices per shard; each ends with a checkpoint"),
        ("vote", "softmax", one_of("softmax", "votes"),
         "average the shards' probabilities, or count one vote per shard"),
    ),
    _section("regrow", "options of regrow",
        ("share", 1 / 3, SHARE,
         "share of the convolutions that start afresh, counted from the last"),
        ("shrink", 1.0, SHARE,
         "share of the old weights in the other layers; 1 keeps them as they are"),
    ),
    _section("relabel", "options of relabel and prune_relabel",
        ("answer", "nearest", one_of("nearest", "random"),
         "new label of a forgotten image: the most likely other class by the trained "
         "model, or a random one"),
    ),
    _section("audit", "what the audit looks at",
        ("tests", "all", some_of(*AUDIT_TESTS), "tests to run"),
        ("seeds", "first", one_of("first", "all"),
         "which models of a method with several seeds are judged"),
        ("retrained", 0, between(0, 1000),
         "number of retrained models to compare with; 0 uses all"),
        ("reference", "", PATH,
         "other runs, such as runs/a,results/b, whose retrained models are used too"),
        ("models", "", PATH,
         "further saved models to audit: name=place,name=place, folders or files"),
        ("backdoor", 0.0, SHARE,
         "share of leaving clients' images that get a trigger before training"),
        ("confidence", 0.95,
         within(lambda value: 0.5 <= value < 1, "0.5 or more and less than 1"),
         "confidence of the interval that a candidate must lie in"),
        ("max_examples", 4000, between(2, 2**31 - 1),
         "maximum number of training images, and of test images"),
        ("batch_size", 32, BATCH, "images per step of shadow training and relearning"),
        ("shadows", 4, EVEN,
         "shadow models to train for the membership attacks; 0 trains none"),
        ("shadow_steps", 150, STEPS, "training steps of each shadow model"),
        ("shadow_learning_rate", 0.05, RATE,
         "learning rate of each shadow model, at the start"),
        ("relearn_level", 0.9, at_most(1),
         "share of the raw model's accuracy that counts as relearned"),
        ("relearn_max_steps", 10, STEPS,
         "training steps of relearning, in each setting"),
        ("relearn_every", 4, STEPS, "training steps between two measurements"),
        ("relearn_learning_rate", 0.01, RATE, "the middle learning rate of relearning"),
        ("relearn_learning_rates", "", RATES,
         "learning rates, such as 0.003,0.01; '' is the middle one times 0.3, 1 and 3"),
        ("relearn_images", "10,100", AMOUNTS,
         "numbers of training images per class to relearn from"),
        ("probe_depths", 4, between(0, 1000),
         "number of evenly spaced layers to probe, besides the last features"),
    ),
    _section("runtime", "the machine; beyond rounding, only dtype can change a result",
        ("backend", "auto", one_of("auto", "loop", "map", "vmap", "shard_map"),
         "how the clients of a round are run"),
        ("dtype", "float32", one_of("float32", "bfloat16"),
         "number format of activations; bfloat16 is for GPUs, TPUs, CPUs with AMX and"
         " AMD's with avx512_bf16"),
        ("conv", "auto", one_of("auto", "xla", "onednn"),
         "library for convolutions; onednn is for CPUs (needs the extra)"),
        ("devices", 0, between(0, 1024), "number of CPU devices; 0 is automatic"),
        ("compilation", "full", one_of("full", "quick"),
         "how hard XLA optimises; quick compiles in half the time, for short runs"),
        ("compilation_cache", "auto", PATH,
         "directory of compiled programs; auto is in ~/.cache, '' is none"),
        ("heartbeat_seconds", 100, SECONDS,
         "seconds of silence after which a process counts as dead"),
        ("join_seconds", 60, SECONDS,
         "seconds that processes wait for each other at the start"),
        ("pool", "split", one_of("split", "whole"),
         "images that each of several processes holds: its own clients', or all"),
        ("tensorboard", False, SWITCH, "write TensorBoard events (needs the extra)"),
        ("progress", "auto", one_of("auto", "plain", "off"),
         "progress display; auto is live on a terminal"),
    ),
)
# fmt: on
KEYS = {key.name: key for section in SECTIONS for key in section.keys}
