"""The public names of fuprune, and where each lives.

Type checkers read it, and so does `__init__.py`, which loads a name on first use.
"""

from fuprune.audit import AuditData as AuditData
from fuprune.audit import AuditOptions as AuditOptions
from fuprune.audit import AuditReport as AuditReport
from fuprune.audit.audit import audit as _audit
from fuprune.audit.request_audit import RequestData as RequestData
from fuprune.audit.request_audit import audit_request as audit_request
from fuprune.data.dataset import Dataset as Dataset
from fuprune.data.dataset import from_arrays as from_arrays
from fuprune.data.federated import Cohort as Cohort
from fuprune.data.federated import FederatedDataset as FederatedDataset
from fuprune.data.federated import drop_classes as drop_classes
from fuprune.data.federated import drop_clients as drop_clients
from fuprune.data.federated import drop_examples as drop_examples
from fuprune.data.federated import federate as federate
from fuprune.data.federated import keep_classes as keep_classes
from fuprune.data.federated import sample_cohort as sample_cohort
from fuprune.data.federated import take_clients as take_clients
from fuprune.data.federated import whole_cohort as whole_cohort
from fuprune.data.partition import bias_partition as bias_partition
from fuprune.data.partition import dirichlet_partition as dirichlet_partition
from fuprune.data.partition import hold_out as hold_out
from fuprune.data.partition import iid_partition as iid_partition
from fuprune.data.partition import natural_partition as natural_partition
from fuprune.data.partition import pathological_partition as pathological_partition
from fuprune.data.partition import read_partition as read_partition
from fuprune.data.preprocess import make_preprocess as make_preprocess
from fuprune.data.sources import class_names as class_names
from fuprune.data.sources import load as _load
from fuprune.errors import FupruneError as FupruneError
from fuprune.export import export_stablehlo as export_stablehlo
from fuprune.export import load_safetensors as load_safetensors
from fuprune.export import load_stablehlo as load_stablehlo
from fuprune.export import save_safetensors as save_safetensors
from fuprune.federated.aggregate import clipped_mean as clipped_mean
from fuprune.federated.aggregate import coordinate_median as coordinate_median
from fuprune.federated.aggregate import trimmed_mean as trimmed_mean
from fuprune.federated.aggregate import weighted_mean as weighted_mean
from fuprune.federated.batch_norm import LocalBatchNorm as LocalBatchNorm
from fuprune.federated.batch_norm import recalibrated as recalibrated
from fuprune.federated.batch_norm import with_own_statistics as with_own_statistics
from fuprune.federated.cohort import for_each_client as for_each_client
from fuprune.federated.evaluate import Evaluation as Evaluation
from fuprune.federated.evaluate import make_evaluator as make_evaluator
from fuprune.federated.objective import Objective as Objective
from fuprune.federated.objective import classification as classification
from fuprune.federated.objective import distillation as distillation
from fuprune.federated.program import ClientProgram as ClientProgram
from fuprune.federated.server import FedAlgorithm as FedAlgorithm
from fuprune.federated.server import RoundInfo as RoundInfo
from fuprune.federated.server import ServerState as ServerState
from fuprune.federated.server import fed_avg as fed_avg
from fuprune.federated.server import fed_sgd as fed_sgd
from fuprune.federated.sharded import make_client_mesh as make_client_mesh
from fuprune.federated.train import FitResult as FitResult
from fuprune.federated.train import Record as Record
from fuprune.federated.train import fit as fit
from fuprune.federated.train import iterate as iterate
from fuprune.models.adapt import adapt as adapt
from fuprune.models.adapt import variables_of as variables_of
from fuprune.models.brought import bring as bring
from fuprune.models.fresh import init_variables as init_variables
from fuprune.models.zoo import create as create
from fuprune.run.checkpoint import load as load
from fuprune.run.checkpoint import save_model as save_model
from fuprune.surgery import PrunePlan as PrunePlan
from fuprune.surgery import compact as compact
from fuprune.surgery import cut_optimizer_state as cut_optimizer_state
from fuprune.surgery import layer_names as layer_names
from fuprune.surgery import make_plan as make_plan
from fuprune.surgery import mask as mask
from fuprune.surgery import plan_report as plan_report
from fuprune.surgery.rebuild import from_spec as from_spec
from fuprune.surgery.rebuild import spec as spec
from fuprune.unlearning.activations import ClassActivations as ClassActivations
from fuprune.unlearning.activations import class_activations as class_activations
from fuprune.unlearning.activations import collect as collect
from fuprune.unlearning.activations import merge_activations as merge_activations
from fuprune.unlearning.class_pruning import Cut as Cut
from fuprune.unlearning.class_pruning import Protection as Protection
from fuprune.unlearning.class_pruning import class_pruning as class_pruning
from fuprune.unlearning.class_pruning import server_proc as server_proc
from fuprune.unlearning.fed_eraser import Replay as Replay
from fuprune.unlearning.methods import METHODS as METHODS
from fuprune.unlearning.protocol import UnlearnFn as UnlearnFn
from fuprune.unlearning.protocol import UnlearnResult as UnlearnResult
from fuprune.unlearning.reading import Reading as Reading
from fuprune.unlearning.request import ForgetRequest as ForgetRequest
from fuprune.unlearning.rounds import keep_round as keep_round
from fuprune.unlearning.tfidf import (
    inverse_document_frequency as inverse_document_frequency,
)
from fuprune.unlearning.tfidf import term_frequency as term_frequency
from fuprune.unlearning.tfidf import tf_idf as tf_idf

# At home `audit.audit` and `data.load` say enough; here they need longer names.
audit_models = _audit
load_dataset = _load

__version__: str
