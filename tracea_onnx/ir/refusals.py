"""Refusals: why a rule does not fuse at an anchor, as a code with operands.

`Why` is the one table of codes. Each has the template of its sentence, the advice that lifts it,
and whether the anchor looked like the rule's chain. `str(Reason)` renders the sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, unique

from tracea_onnx.ir import fused_op_names
from tracea_onnx.ir.graph import Node
from tracea_onnx.support.data_classes import dataclass


class Advice(Enum):
    """Advice about a refusal, in words. `match/advice.py` finds those of the first three in the
    graph.
    """

    CONSTANT = "make it a constant"
    SHAPES = "give it a shape"
    OUTPUT = "drop the output"
    NONE = ""
    SAME_DIMS = (
        "give equal dimensions the same name in dynamic_axes (dynamic_shapes), or fix them, and"
        " export again"
    )
    EVAL = "re-export after model.eval(), with training=torch.onnx.TrainingMode.EVAL"
    ONE_TYPE = "re-export in one floating-point type, without autocast"
    KEEPDIMS = "write the reduction with keepdim=True and export again"
    SOFTMAX = "write softmax(x) instead of exp(x) / sum(exp(x)) and export again"
    OPSET_13 = "re-export with opset 13 or later"
    OPSET_21 = "re-export with opset 21 or later"


#: Marks of a code whose anchor does not look like the rule's chain.
_FAR = (Advice.NONE, False)


@unique
class Why(Enum):
    """The codes. A template names its operands; `{node}` is the node whose condition failed."""

    def __init__(self, sentence: str, advice: Advice = Advice.NONE, near: bool = True) -> None:
        self.sentence, self.advice, self.near = sentence, advice, near

    # types, shapes and constants
    RANK_UNKNOWN = "the rank of '{value}' is not known", Advice.SHAPES
    SHAPE_UNKNOWN = "the shape of '{value}' at {node} is not known", Advice.SHAPES
    CHANNELS_UNKNOWN = "the number of channels of '{value}' is not known", Advice.SHAPES
    DTYPE_UNKNOWN = "the element type of '{value}' at {node} is not known", Advice.SHAPES
    INTEGERS = "{node} works on integers ('{value}'); only floating-point chains fuse", *_FAR
    INTEGER_CAST = "{node} casts to a type that is not floating point; a fused kernel holds floats"
    MIXED_FLOATS = "{node} mixes floating-point types", Advice.ONE_TYPE
    ROUNDED = "{node} rounds to a narrower type inside the chain", Advice.ONE_TYPE
    PARAMETER_TYPE = "the {what} '{value}' of {node} has another element type than its input"
    NOT_CONSTANT = "the {what} '{value}' of {node} is not constant", Advice.CONSTANT
    NOT_FINITE = "a constant or an attribute of the chain is infinite or not a number"
    AXIS = "axis {axis} of {node} is outside rank {rank}"
    KEEPDIMS = "{node} drops the reduced axes (keepdims = 0)", Advice.KEEPDIMS

    # attributes and operators
    ATTRIBUTE = "{node} has {attribute} {value}; the fused kernel takes {wanted}"
    UNREAD = "{fault}"
    ACTIVATION = "{node} has activation '{name}' with parameters {params}, which no kernel computes"
    QUANTIZED = (
        "{node} reads {source}: a quantized operator stays as it is in the file, and sessions"
        " compute it in integers"
    )
    TRAINING = "{node} is in training mode", Advice.EVAL
    TRAINING_OUTPUTS = "{node} also returns training statistics", Advice.EVAL

    # values that leave the chain
    GRAPH_OUTPUT = (
        "'{value}' inside the chain is a graph output, so it must be stored",
        Advice.OUTPUT,
    )
    ALSO_READ = "'{value}' inside the chain is also read by {reader}, so it must be stored"
    READERS = "'{value}' inside the chain is read by {count} nodes ({readers}), not by one"
    CYCLE = "a path leaves the chain and comes back, so fusing it would make a cycle"
    NOTHING_FUSES = "nothing after {node} fuses: {because}", *_FAR
    RESULT_IS_OUTPUT = "the result of {node} is a graph output", Advice.OUTPUT
    RESULT_UNREAD = "nothing reads the result of {node}"
    NOT_POINTWISE = "{reader} follows {node}, and it is not a pointwise operator"
    SEVERAL_ENDS = "the chain after {node} does not end in one floating-point value"
    NOT_COMPUTED = "'{value}' is not computed by a node of this graph", *_FAR

    # pointwise expressions
    BOOLEAN_EXPONENT = "{node} has a boolean exponent"
    ENLARGES = (
        "input '{value}' of {node} has shape {shape}, which is not known to broadcast to {target}",
        Advice.SAME_DIMS,
    )
    OPERANDS = "{node} reads one more tensor than the {count} that a fused kernel takes"
    INSTRUCTIONS = "the expression exceeds {count} instructions at {node}"
    ALONE = "no other pointwise operator fuses with {node}", *_FAR
    NO_TENSOR = "the chain that ends in {node} reads no tensor", *_FAR
    CONSTANT_RANK = "the rank of '{value}' comes from a constant"
    EPILOGUE_OF = "{node} belongs to the kernel of {owner}", *_FAR
    NO_PRODUCER = "no pointwise operator comes before {node}", *_FAR
    SIZE = "{node} computes sizes that are known before a run", *_FAR
    CHAIN_OF = "{node} is part of the chain that ends in {last}", *_FAR

    # convolution and GEMM
    SPATIAL = "{node} has {count} spatial dims; the fused kernels take 1 or 2"
    KERNEL_SHAPE = "kernel_shape {given} of {node} differs from its weight's {shape}"
    RESIDUAL = (
        "the residual '{value}' of {node} is not known to have the shape of its result",
        Advice.SAME_DIMS,
    )
    FOLDED = "{node} is folded into the weights of {owner}", *_FAR
    PER_CHANNEL = "the {what} '{value}' of {node} does not hold one value per channel"
    VECTOR = "input '{value}' of {node} is a vector; the fused kernel multiplies matrices"
    NOT_LINEAR = "{node} is not a plain linear layer (x·W + b, W of rank 2)", *_FAR
    WEIGHT_ONLY = "{node} does not multiply by constant weights of a few bits", *_FAR
    FEW_BITS = "the quantized weight '{value}' of {node} has {what}, which no kernel takes"
    NO_PARTNER = "no second GEMM of the same shape reads '{value}', the input of {node}", *_FAR
    NOT_MEETING = (
        "{node} and {other} share their input, but do not meet in one pointwise chain: {because}",
        *_FAR,
    )
    HALVES_APART = "the halves of {node} do not meet in one pointwise chain: {because}"
    SECOND_BRANCH = "{node} is the second branch of the gated unit of {other}", *_FAR

    # squeeze-and-excitation
    NOT_IMAGES = "{node} reduces shape {shape}, which is not a batch of images", *_FAR
    NOT_POOLING = "{node} averages over axes {axes}, not over height and width", *_FAR
    PER_IMAGE = "'{value}' does not hold one value per image and channel"
    NOT_1X1 = "{node} is not a plain 1x1 convolution (stride 1, no pads, one group)", *_FAR
    NOT_LAYER = "{node} reads the pooled value, but is no 1x1 convolution or linear layer", *_FAR
    LAYERS_DIFFER = "the layers {node} and {other} are of different form"
    NOT_GATE = "{node} does not multiply the gate with '{value}', the input of {mean}"

    # normalization
    NOT_SQUARES = "{node} does not average squares", *_FAR
    NORM_AXES = "{node} averages over axes {axes}, which are neither the last ones nor axis 1 alone"
    AXES_DIFFER = "the mean and the variance before {node} are taken over different axes"
    NOT_NORMALIZED = "{node} does not divide the value whose squares are averaged"
    AFFINE_SCALE = "{node} does not scale both the input and its mean"
    AFFINE_SHIFT = "{node} does not add beta minus the scaled mean"
    EPSILON = "what {node} adds to the variance is not a constant scalar", Advice.CONSTANT
    EPSILON_LATE = "{node} adds epsilon after the square root, not before"
    NO_ROOT = "{node} follows the variance instead of a square root"
    INVERTED_TWICE = "{node} inverts the reciprocal square root a second time"
    NOT_APPLIED = "{node} does not apply the reciprocal square root to the input"
    NORM_TYPES = "the norm reads '{value}' and writes '{output}' in different types"
    NORM_RANK = "a constant of the norm gives '{output}' more axes than '{value}' has"
    NORM_WEIGHT = "weight '{value}' of {node} does not have the normalized shape"
    STATISTICS = "{node} also returns its mean or standard deviation"
    SUMMANDS = "the two summands of {node} are not known to have the same shape", Advice.SAME_DIMS
    IS_RMS = "{node} does not use the mean: this is an RMS normalization", *_FAR
    IS_LAYER_NORM = "{node} uses the mean: this is a layer normalization", *_FAR
    NO_RESIDUAL = "'{value}' is not the sum of a run-time value and a residual of its shape", *_FAR
    UNGROUPED = "no Reshape into groups comes before {node}: it is an instance normalization", *_FAR
    GROUPED = "the Reshapes around {node} make it a group normalization", *_FAR
    UNEQUAL_GROUPS = "{source} does not split the {channels} channels into equal groups"
    GROUP_WEIGHTS = "scale and bias of {node} are per group; they must be 1 and 0"
    GROUP_OPSET = "scale and bias of {node} are per group before opset 21", Advice.OPSET_21
    NOT_RESTORED = "no Reshape back to the channels follows {node}"
    RESTORED_SHAPE = "{node} does not restore the shape before the groups"

    # softmax
    NOT_SOFTMAX = "{node} does not sum exp(x - max(x))", *_FAR
    NO_MAXIMUM = (
        "{node} sums exp(x) without subtracting max(x): exp(x) overflows where softmax(x) does not",
        Advice.SOFTMAX,
    )
    SOFTMAX_AXES = "{other} and {node} do not reduce the same single axis"
    NOT_DIVIDED = "the sum of {node} does not divide the exponentials it adds"
    FLATTENS = "{node} of opset {opset} flattens the axes after {axis} into one", Advice.OPSET_13

    # rotary embedding
    NOT_JOINED = "{node} does not join two parts of one value along its last axis", *_FAR
    NOT_NEGATED = "{node} does not join a negated half with the other half", *_FAR
    NOT_HALVES = "{node} does not join the negated second half of a value with its first half"
    NOT_ROTATED = "the rotated value '{value}' is not multiplied by one table and added"
    NO_COSINE = "{node} does not add the value multiplied by its cosine"
    FOUR_PRODUCTS = "{other} and {node} do not combine four products", *_FAR
    NO_ROTATION = "{other} and {node} do not rotate the two halves of one value", *_FAR
    ROPE_SHAPE = ("'{value}' is not known to be [batch, heads, sequence, head size]", Advice.SHAPES)
    TABLE_SHAPES = (
        "the cosine and sine tables of {node} are not known to have one shape",
        Advice.SHAPES,
    )
    TABLE_WIDTH = "the tables hold {given} values for {count} rotated elements; {wanted} are needed"
    TABLE_ROWS = "the tables at {node} do not hold one row per position for all heads"
    HALF_TABLES = (
        "the tables of {node} are not known to hold half the rotated elements per position"
    )
    POSITIONS = "the position ids of {node} are not known to be [batch, sequence]"

    # attention: scores and masks
    SOFTMAX_AXIS = "{node} runs over axis {axis}, not over the keys (the last axis)"
    LOGARITHM = "{node} takes the logarithm of the probabilities"
    NOT_ATTENTION = (
        "the input of {node} is not a matrix multiplication of two run-time values",
        *_FAR,
    )
    SCORES_RANK = (
        "the scores that {node} computes have rank {rank}; the fused kernel takes 3 or 4, and 5 "
        "without masks"
    )
    EINSUM = "{node} does not multiply matrices over the head elements or over the keys"
    SCORES_OPERATOR = "{node} stands between the scores and Softmax"
    COLUMNS = "{node} regroups the columns (keys) of the scores"
    ROWS = "{node} regroups the rows (queries) between the two matrix multiplications"
    ZERO_DIVISOR = "{node} divides the scores by zero"
    FACTOR = (
        "{node} scales the scores by a factor that is not a constant scalar, nor one per head",
        Advice.CONSTANT,
    )
    CAPPED_TWICE = "{node} applies Tanh to the scores a second time"
    CAP = "the scores are multiplied by {scale:g} after {node}; a softcap is positive and finite"
    BEFORE_CAP = "{node} masks or bounds the scores before Tanh caps them"
    BEFORE_FACTORS = "{node} changes the scores before they are multiplied by one factor per head"
    BETWEEN_MASKS = "{node} bounds the scores between two masks"
    BOUNDS = "{node} bounds the scores; only a lower bound of {limit:g} or less fuses"
    FILL_VARIES = "what {node} writes into the scores is not one constant"
    FILL_HIGH = "{node} writes {fill:g} into the scores; a mask writes {limit:g} or less"
    TRIANGLE_ADDED = "{node} adds no causal mask to scores that are multiplied by a triangle"
    TRIANGLE = "the scores are multiplied by a triangle, and masked in another way, too"
    MASKS = "more than three masks are applied to the scores"
    LIFTED = "the scores are lifted to {floor:g} after mask '{value}' of unknown content is added"
    CLEARED = "{node} overwrites probabilities other than those that the mask hides"
    MASK_SHAPE = (
        "mask '{value}' does not broadcast to [batch, heads, queries, keys]",
        Advice.SAME_DIMS,
    )
    MASK_RANK = "the rank of mask '{value}' is not known to be 2, 3 or 4", Advice.SHAPES
    MASK_KEYS = "mask '{value}' is not known to cover every key", Advice.SHAPES

    # attention: probabilities, values and heads
    NAN_VALUE = "{node} replaces NaN probabilities by something other than 0"
    PROBABILITIES_OPERATOR = (
        "{node} stands between Softmax and the matrix multiplication with the values"
    )
    LEFT_OPERAND = "the probabilities are not the left operand of {node}"
    VALUES_RANK = (
        "the matrix multiplication with the values ({node}) has another rank than the scores"
    )
    VALUES_SCALED = "the values of {node} are scaled; the fused kernel scales the scores only"
    LAYOUT = "the layout of the {what} '{value}' is not known", Advice.SHAPES
    RESULT_LAYOUT = "the result is stored as {layout}, which the fused kernel does not write"
    ELEMENT_TYPES = "queries, keys, values and result are not all of one element type: {kinds}"
    OPERAND_INSIDE = "'{value}' is an operand and a step towards another"
    HEAD_SCALES = "the factors '{value}' are not one for each head, in the type of the queries"
    BATCH_SIZES = "{what} have different batch sizes"
    HEAD_COUNTS = "keys and values have different head counts"
    HEADS_MULTIPLE = "the query heads are not a multiple of the key heads"
    HEADS_UNKNOWN = "the number of heads is not constant", Advice.SHAPES
    HEAD_SIZE = "the head size of {node} is {size}, not a positive constant", Advice.SHAPES
    NO_HEADS = "{node} has operands of rank 3, and no number of heads"
    QUERY_RANK = "the query of {node} has rank {rank}; the fused kernel takes 3 or 4"
    PROJECTIONS = "{node} also computes the projections, which no fused operator does"
    PROJECTION_BIAS = "{node} also adds the bias of the projections"
    UNPADDED = "{node} works on sequences without their padding"
    PADDING_MASK = "{node} also takes a padding mask of lengths or keys"
    KV_CACHE = "{node} also keeps its own key/value cache"
    PACKED = "{node} reads packed or cached keys and values"

    # choice among matches
    NO_RULE = "no rule starts at {op}", *_FAR
    SINGLE_NODE = "there is nothing to fuse with {op}: a single node runs as it is", *_FAR
    NO_SAVING = "fusing it would not save any time", *_FAR
    SHARES_NODES = "it shares nodes with the {rule} chain at '{anchor}', which saves more"
    HIDES_OPERAND = (
        "it and the {rule} chain at '{anchor}' (larger saving) exclude each other: one fuses away a"
        " value that the other reads"
    )
    JOINT_CYCLE = "together with a chain that saves more it would make a cycle"
    TURNED_BACK = "with {fault}, so it was turned back"
    DEFECT = "internal error in rule '{rule}' ({fault}), which costs this fusion only; report this"


@dataclass(frozen=True)
class Reason:
    """A code with its operands: names, numbers, or another reason as `because`."""

    why: Why
    operands: Mapping[str, object]

    @property
    def code(self) -> str:
        """The code's name in reports."""
        return self.why.name.lower()

    def __str__(self) -> str:
        return fused_op_names.readable(self.why.sentence.format(**self.operands))


def reason(why: Why, **operands: object) -> Reason:
    """`why` with its operands. A node becomes its label, and a refusal its reason."""
    return Reason(why, {name: _plain(operand) for name, operand in operands.items()})


def _plain(operand: object) -> object:
    if isinstance(operand, Node):
        return label(operand)
    return operand.reason if isinstance(operand, Refuse) else operand


def label(node: Node) -> str:
    """How sentences call a node."""
    return f"{node.op} '{node.name}'"


class Refuse(Exception):
    """Raised, or returned, where a rule does not fuse at an anchor.

    node: whose condition failed; the operand `node` of the sentence.
    near: whether the anchor looked like the rule's chain; the code says so where this is None.
    """

    def __init__(
        self, why: Why, node: Node | None = None, *, near: bool | None = None, **operands: object
    ) -> None:
        if node is not None:
            operands["node"] = node
        self.reason, self.node = reason(why, **operands), node
        self.near = why.near if near is None else near
        super().__init__()

    def __str__(self) -> str:
        return str(self.reason)

    def copy(self) -> Refuse:
        """The refusal without a traceback, which would keep every frame it passed through."""
        again = Refuse(self.reason.why, near=self.near)
        again.reason, again.node = self.reason, self.node
        return again


def require(node: Node, **attributes: object) -> None:
    """Refuse a node that has another value of one of these attributes.

    The required value is the attribute's default, too.
    """
    for name, wanted in attributes.items():
        if (value := node.attr(name, wanted)) != wanted:
            raise Refuse(Why.ATTRIBUTE, node, attribute=name, value=value, wanted=wanted)


@dataclass(frozen=True)
class Refusal:
    """A recorded refusal: `anchor` is the node's name (or its first output when unnamed), `node`
    the one whose condition failed, `fix` what a user can do.
    """

    rule: str
    anchor: str
    because: Reason
    near: bool = True
    node: str = ""
    fix: str = ""

    @property
    def reason(self) -> str:
        """The sentence."""
        return str(self.because)

    @property
    def said(self) -> str:
        """The sentence behind the rule's name."""
        return f"{self.rule}: {self.reason}" if self.rule else self.reason
