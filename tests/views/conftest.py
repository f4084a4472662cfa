"""Fixtures of the pictures' tests."""

import pytest

# Imports of seconds are inside functions, as in the conftest.py above.


@pytest.fixture
def no_open_figures():
    """Pictures do not touch pyplot's figures or settings."""
    import matplotlib
    from matplotlib import pyplot as plt

    settings, figures = dict(matplotlib.rcParams), plt.get_fignums()
    yield
    assert plt.get_fignums() == figures
    assert dict(matplotlib.rcParams) == settings


@pytest.fixture(scope="module", params=["plain", "idf", "mapping", "rescaled", "everything"])
def settings(request, encoder, pairs, tmp_path_factory):
    """Options of a picture."""
    table = tmp_path_factory.mktemp("baseline") / "mine.csv"
    table.write_text("LAYER,P,R,F\n" + "".join(f"{layer},.3{layer},.4{layer},.36\n" for layer in range(7)))
    rescaled = {"rescale": table}
    mapping = {"idf": {token: 0.1 + token % 5 for token in range(encoder.tokenizer.vocab_size)}}
    idf = {"idf": pairs[1]}
    return {"plain": {}, "idf": idf, "mapping": mapping, "rescaled": rescaled, "everything": idf | rescaled}[
        request.param
    ]


@pytest.fixture(scope="module")
def alignment(encoder, settings):
    """The alignment with these options."""
    from bertscore_tm import align
    from tests.support.pictures import CANDIDATE, REFERENCE

    return align(CANDIDATE, REFERENCE, encoder, **settings)
