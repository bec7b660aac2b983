"""The public names of fuprune, and where each lives.

Type checkers read it, and so does `lazy_loader`, which loads a name on first use.
"""

from .audit import Audit as Audit
from .audit import AuditData as AuditData
from .audit import AuditOptions as AuditOptions
from .audit import RequestData as RequestData
from .audit import audit_models as audit_models
from .audit import audit_request as audit_request
from .data.dataset import Dataset as Dataset
from .data.dataset import from_arrays as from_arrays
from .data.federated import Cohort as Cohort
from .data.federated import FederatedDataset as FederatedDataset
from .data.federated import drop_classes as drop_classes
from .data.federated import drop_clients as drop_clients
from .data.federated import drop_examples as drop_examples
from .data.federated import federate as federate
from .data.federated import keep_classes as keep_classes
from .data.federated import sample_cohort as sample_cohort
from .data.federated import take_clients as take_clients
from .data.federated import whole_cohort as whole_cohort
from .data.partition import bias_partition as bias_partition
from .data.partition import dirichlet_partition as dirichlet_partition
from .data.partition import hold_out as hold_out
from .data.partition import iid_partition as iid_partition
from .data.partition import natural_partition as natural_partition
from .data.partition import pathological_partition as pathological_partition
from .data.partition import read_partition as read_partition
from .data.preprocess import make_preprocess as make_preprocess
from .data.sources import class_names as class_names
from .data.sources import load_dataset as load_dataset
from .errors import FupruneError as FupruneError
from .federated.aggregate import clipped_mean as clipped_mean
from .federated.aggregate import coordinate_median as coordinate_median
from .federated.aggregate import trimmed_mean as trimmed_mean
from .federated.aggregate import weighted_mean as weighted_mean
from .federated.batch_norm import LocalBatchNorm as LocalBatchNorm
from .federated.batch_norm import recalibrated as recalibrated
from .federated.batch_norm import with_own_statistics as with_own_statistics
from .federated.cohort import for_each_client as for_each_client
from .federated.evaluate import Evaluation as Evaluation
from .federated.evaluate import make_evaluator as make_evaluator
from .federated.objective import Objective as Objective
from .federated.objective import classification as classification
from .federated.objective import distillation as distillation
from .federated.program import ClientProgram as ClientProgram
from .federated.server import FedAlgorithm as FedAlgorithm
from .federated.server import RoundInfo as RoundInfo
from .federated.server import ServerState as ServerState
from .federated.server import fed_avg as fed_avg
from .federated.server import fed_sgd as fed_sgd
from .federated.sharded import make_client_mesh as make_client_mesh
from .federated.train import FitResult as FitResult
from .federated.train import Record as Record
from .federated.train import fit as fit
from .federated.train import iterate as iterate
from .models.adapt import adapt as adapt
from .models.adapt import variables_of as variables_of
from .models.brought import bring as bring
from .models.fresh import init_variables as init_variables
from .models.zoo import create as create
from .report import show as show
from .run.checkpoint import load as load
from .run.checkpoint import save_model as save_model
from .run.export import export_stablehlo as export_stablehlo
from .run.export import load_safetensors as load_safetensors
from .run.export import load_stablehlo as load_stablehlo
from .run.export import save_safetensors as save_safetensors
from .run.forget import forget as forget
from .surgery import PrunePlan as PrunePlan
from .surgery import compact as compact
from .surgery import cut_optimizer_state as cut_optimizer_state
from .surgery import layer_names as layer_names
from .surgery import load_plan as load_plan
from .surgery import make_plan as make_plan
from .surgery import mask as mask
from .surgery import plan_report as plan_report
from .surgery.rebuild import from_spec as from_spec
from .surgery.rebuild import spec as spec
from .unlearning.activations import ClassActivations as ClassActivations
from .unlearning.activations import class_activations as class_activations
from .unlearning.activations import collect as collect
from .unlearning.activations import merge_activations as merge_activations
from .unlearning.class_pruning import class_pruning as class_pruning
from .unlearning.class_pruning import server_proc as server_proc
from .unlearning.fed_eraser import Replay as Replay
from .unlearning.job import Job as Job
from .unlearning.job import UnlearnResult as UnlearnResult
from .unlearning.method import Method as Method
from .unlearning.method import method as method
from .unlearning.methods import METHODS as METHODS
from .unlearning.request import ForgetRequest as ForgetRequest
from .unlearning.rounds import keep_round as keep_round
from .unlearning.tfidf import (
    inverse_document_frequency as inverse_document_frequency,
)
from .unlearning.tfidf import term_frequency as term_frequency
from .unlearning.tfidf import tf_idf as tf_idf

__version__: str
