"""The typed numbers agree with what the paper says about them elsewhere."""

from fuprune.report.paper_numbers import (
    TABLE_1,
    TABLE_2,
    TABLE_3_AND_APPENDIX,
    TABLE_4,
    TABLE_5,
)


def test_table_2_has_eight_models_on_two_data_sets():
    assert len({(row.dataset, row.model) for row in TABLE_2}) == len(TABLE_2) == 16
    for row in TABLE_2:
        fine_tuned, retrained = row.numbers[4], row.numbers[6]
        assert fine_tuned == retrained == 0


def test_the_text_about_tables_4_and_5_holds():
    assert max(row.numbers[0] for row in TABLE_4) == 0.0063
    assert max(row.numbers[0] for row in TABLE_5) == 0.0059
    assert max(row.numbers[1] for row in TABLE_5) == 5.27e-6


def test_table_1_rounds_grow_with_the_bias():
    for dataset in ("cifar10", "cifar100"):
        for method in ("class_pruning", "fisher"):
            chosen = [r for r in TABLE_1 if (r.dataset, r.method) == (dataset, method)]
            assert len(chosen) == 3
            assert [r.bias for r in chosen] == sorted(r.bias for r in chosen)
            rounds = [r.numbers[0] for r in chosen]
            assert rounds == sorted(rounds)


def test_accuracies_are_fractions():
    shares = [value for row in TABLE_2 for value in row.numbers]
    shares += [value for row in TABLE_3_AND_APPENDIX for value in row.numbers[:-1]]
    assert len(shares) == 2 * (16 * 4 + 8 * 5)
    assert all(0 <= share <= 1 for share in shares)
    constant = {round(1 / n, 4) for n in (9, 8, 7)}
    assert set(shares) & constant == constant
