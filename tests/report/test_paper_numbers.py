"""The typed numbers agree with what the paper says about them elsewhere."""

from fuprune.report import paper_numbers


def test_table_2_has_eight_models_on_two_data_sets():
    rows = {(row.dataset, row.model) for row in paper_numbers.TABLE_2}
    assert len(rows) == len(paper_numbers.TABLE_2) == 16
    assert all(
        row.fine_tuned.u == row.retrained.u == 0 for row in paper_numbers.TABLE_2
    )


def test_the_text_about_tables_4_and_5_holds():
    assert max(row.difference for row in paper_numbers.TABLE_4) == 0.0063
    assert max(row.difference for row in paper_numbers.TABLE_5) == 0.0059
    assert max(row.divergence for row in paper_numbers.TABLE_5) == 5.27e-6


def test_table_1_rounds_grow_with_the_bias():
    for dataset in ("cifar10", "cifar100"):
        for method in ("class_pruning", "fisher"):
            rows = [
                row
                for row in paper_numbers.TABLE_1
                if (row.dataset, row.method) == (dataset, method)
            ]
            assert [row.bias for row in rows] == sorted(row.bias for row in rows)
            assert [row.rounds for row in rows] == sorted(row.rounds for row in rows)
            assert len(rows) == 3


def test_accuracies_are_fractions():
    rows = [*paper_numbers.TABLE_2, *paper_numbers.TABLE_3_AND_APPENDIX]
    pairs = [
        value
        for row in rows
        for value in row
        if isinstance(value, paper_numbers.Accuracies)
    ]
    assert len(pairs) == 16 * 4 + 8 * 5
    assert all(0 <= share <= 1 for pair in pairs for share in pair)
    constant = {round(1 / n, 4) for n in (9, 8, 7)}
    found = {pair.r for pair in pairs} & constant
    assert found == constant
