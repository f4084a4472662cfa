"""The table of an alignment at a prompt."""

from bertscore_tm import align


def test_a_prompt_shows_a_table(encoder):
    assert repr(align("a cat sleeps", "the kitten is sleeping", encoder)).split("\n") == [
        "P 0.8510  R 0.8519  F1 0.8514",
        "",
        "candidate  best match in reference  similarity  part of precision",
        "1 a        special token                0.8416             0.2805",
        "2 cat      2 kitten                     0.8152             0.2717",
        "3 sleeps   4 sleeping                   0.8960             0.2987",
        "",
        "reference   best match in candidate  similarity  part of recall",
        "1 the       1 a                          0.8412          0.2103",
        "2 kitten    2 cat                        0.8152          0.2038",
        "3 is        special token                0.8551          0.2138",
        "4 sleeping  3 sleeps                     0.8960          0.2240",
    ]
