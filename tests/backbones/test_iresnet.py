from __future__ import annotations

import numpy as np

import backbones
from backbones import iresnet
from runtime.mxnet import mx

UNIT = "stage1_unit1"


def test_names_and_shapes_are_those_of_published_checkpoints(tensor_shapes) -> None:
    shapes = tensor_shapes(backbones.build("r50"))
    expected = {
        "conv0_weight": (64, 3, 3, 3),
        "bn0_gamma": (64,),
        "relu0_gamma": (64,),
        f"{UNIT}_bn1_gamma": (64,),
        f"{UNIT}_conv1_weight": (64, 64, 3, 3),
        f"{UNIT}_bn2_beta": (64,),
        f"{UNIT}_relu1_gamma": (64,),
        f"{UNIT}_conv2_weight": (64, 64, 3, 3),
        f"{UNIT}_bn3_gamma": (64,),
        f"{UNIT}_conv1sc_weight": (64, 64, 1, 1),
        f"{UNIT}_sc_gamma": (64,),
        "stage3_unit14_conv2_weight": (256, 256, 3, 3),
        "stage4_unit1_conv1sc_weight": (512, 256, 1, 1),
        "bn1_gamma": (512,),
        "pre_fc1_weight": (512, 25088),
        "pre_fc1_bias": (512,),
        "fc1_gamma": (512,),
        "fc1_beta": (512,),
    }
    assert {name: shapes.get(name) for name in expected} == expected


def test_only_the_first_unit_of_a_stage_projects_its_shortcut(tensor_shapes) -> None:
    shapes = tensor_shapes(backbones.build("r18"))
    projected = [name for name in shapes if name.endswith("_conv1sc_weight")]
    assert projected == [f"stage{stage}_unit1_conv1sc_weight" for stage in (1, 2, 3, 4)]


def test_unit_without_residual_passes_its_input_on() -> None:
    symbol = iresnet.residual_unit(mx.sym.var("x"), "unit", 4, stride=1)
    shapes, outputs, statistics = symbol.infer_shape(x=(2, 4, 6, 6))
    arrays = {name: mx.nd.zeros(shape) for name, shape in zip(symbol.list_arguments(), shapes)}
    arrays["x"] = mx.nd.random.normal(shape=(2, 4, 6, 6))
    auxiliary = {
        name: mx.nd.ones(shape) for name, shape in zip(symbol.list_auxiliary_states(), statistics)
    }
    executor = symbol.bind(mx.cpu(), arrays, aux_states=auxiliary)
    result = executor.forward()[0]
    assert outputs == [(2, 4, 6, 6)]
    np.testing.assert_array_equal(result.asnumpy(), arrays["x"].asnumpy())


def test_the_stride_is_in_the_second_convolution() -> None:
    attributes = backbones.build("r18").attr_dict()
    assert attributes[f"{UNIT}_conv1"]["stride"] == "(1, 1)"
    assert attributes[f"{UNIT}_conv2"]["stride"] == "(2, 2)"
