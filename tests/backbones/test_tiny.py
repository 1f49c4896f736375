from __future__ import annotations

import backbones


def test_four_stages(tensor_shapes) -> None:
    shapes = tensor_shapes(backbones.build("tiny", embedding_size=128))
    channels = [shapes[f"stage{stage}_unit1_conv1_weight"][0] for stage in (1, 2, 3, 4)]
    assert channels == [32, 64, 128, 128]
    assert shapes["pre_fc1_weight"] == (128, 128 * 4 * 4)


def test_it_is_small() -> None:
    assert backbones.parameter_count("tiny", 128) < 0.9e6
