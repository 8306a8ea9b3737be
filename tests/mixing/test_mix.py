"""The mixture holds what its spec says, and nothing that is held out is trained on."""

import json
import re
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.config.loading import SpecError, explain
from tasks.mixing.mix import check, left_over, mix
from tasks.mixing.shares import apportion
from tasks.mixing.spec import MixtureSpec
from tasks.mixing.task import _describe_left_over
from tasks.tables import parquet
from tasks.tables.content_digest import file_digest
from tasks.tables.parquet import TableError, build_table, write_table
from tasks.tables.schemas import GRADED, MIXTURE, PROMPTS, prompt_id
from tasks.tables.texts import compute_prompt_keys
from tests.examples import examples


def graded(sizes):
    """A table with `sizes[domain][source]` prompts."""
    rows = []
    for domain, sources in sizes.items():
        for source, size in sources.items():
            for number in range(size):
                messages = [{"role": "user", "content": f"{source} {number}"}]
                rows.append(
                    {
                        "prompt_id": prompt_id(messages, domain, ""),
                        "domain": domain,
                        "source": source,
                        "messages": messages,
                        "verifier": domain,
                        "ground_truth": '""',
                        "metadata": "{}",
                        "cluster": None,
                        "row": number,
                        "pass_rate": 0.5,
                        "mean_score": 0.5,
                        "num_rollouts": 8,
                        "mean_tokens": 10.0,
                    }
                )
    return build_table(rows, GRADED, "test")


def run(sizes, **spec):
    table = sizes if isinstance(sizes, pa.Table) else graded(sizes)
    return mix(table, MixtureSpec.model_validate(spec))


def column(table, name):
    return table.column(name).to_pylist()


SIZES = {"math": {"gsm": 60, "sums": 20}, "precise_if": {"made": 40}}


@settings(max_examples=examples(60), deadline=None)
@given(
    sizes=st.tuples(st.integers(5, 40), st.integers(5, 40), st.integers(10, 40)),
    heldout=st.integers(0, 9),
    quota=st.integers(1, 5) | st.none(),
    weights=st.tuples(st.integers(1, 5), st.integers(1, 5)) | st.none(),
)
def test_what_is_held_out_is_never_trained_on_and_shares_are_kept(sizes, heldout, quota, weights):
    gsm, sums, made = sizes
    spec = {"heldout": heldout}
    # A small weight may leave math less than its source's quota, which is an error with a claim of its own below.
    if quota is not None and quota + heldout <= gsm and weights is None:
        spec["sources"] = {"gsm": {"quota": quota}}
    if weights is not None:
        spec["domains"] = {"math": {"weight": weights[0]}, "precise_if": {"weight": weights[1]}}
    mixed = run({"math": {"gsm": gsm, "sums": sums}, "precise_if": {"made": made}}, **spec)
    train, held = set(column(mixed.train, "prompt_id")), set(column(mixed.heldout, "prompt_id"))
    assert not train & held
    assert Counter(column(mixed.heldout, "domain")) == Counter({"math": heldout, "precise_if": heldout})
    assert all(row["taken"] + row["heldout"] <= row["available"] for row in mixed.counts)
    taken = {row["source"]: row["taken"] for row in mixed.counts}
    assert sum(taken.values()) == len(train)
    if "sources" in spec:
        assert taken["gsm"] == quota
    if weights is not None:
        math = taken["gsm"] + taken["sums"]
        assert abs(math * weights[1] - taken["made"] * weights[0]) <= sum(weights)


@given(
    st.integers(0, 500), st.dictionaries(st.text(max_size=3), st.floats(0, 10, allow_subnormal=False), min_size=1)
)  # fmt: skip
def test_apportioned_counts_add_up_and_stay_within_one_of_their_share(total, weights):
    counts, everything = apportion(total, weights), sum(weights.values())
    if everything > 0:
        assert sum(counts.values()) == total
        assert all(abs(counts[key] - total * weights[key] / everything) <= 1 for key in weights)


def test_without_size_or_weights_everything_that_is_not_held_out_is_trained_on():
    mixed = run(SIZES, heldout=10)
    assert len(mixed.train) == 100
    assert {(row["source"], row["heldout"]) for row in mixed.counts} == {("gsm", 8), ("sums", 2), ("made", 10)}


@pytest.mark.parametrize("temperature", [1e-300, 0.001, 0.01])
@pytest.mark.parametrize("emphasis", [1, 2])
def test_a_temperature_near_zero_takes_the_largest_members(temperature, emphasis):
    sources = {"sums": {"emphasis": emphasis}}
    mixed = run(SIZES, temperature=temperature, size=30, sources=sources)
    assert Counter(column(mixed.train, "source")) == {"gsm": 30}
    equal = run({"math": {"a": 20, "b": 20, "c": 7}}, temperature=temperature, size=30)
    assert Counter(column(equal.train, "source")) == {"a": 15, "b": 15}


@pytest.mark.parametrize("rest", [{}, {"chat": {"c": 20}}])
@pytest.mark.parametrize("heldout", [0, 5])
def test_a_quota_that_repeats_prompts_takes_none_from_other_sources(rest, heldout):
    mixed = run({"math": {"a": 100, "b": 30}, **rest}, sources={"b": {"quota": 60, "max_repeats": 3}}, heldout=heldout)
    taken = Counter(column(mixed.train, "source"))
    left = {row["source"]: row["available"] - row["heldout"] for row in mixed.counts}
    assert taken == left | {"b": 60}


def test_weights_divide_the_size():
    mixed = run(SIZES, size=50, domains={"math": {"weight": 4}, "precise_if": {"weight": 1}})
    assert Counter(column(mixed.train, "domain")) == {"math": 40, "precise_if": 10}


def test_weights_without_a_size_give_the_largest_mixture_of_these_proportions():
    mixed = run(SIZES, domains={"math": {"weight": 1}, "precise_if": {"weight": 1}})
    assert Counter(column(mixed.train, "domain")) == {"math": 40, "precise_if": 40}


def test_weight_zero_leaves_a_source_out_of_training_but_not_of_the_held_out():
    mixed = run(SIZES, heldout=8, sources={"gsm": {"weight": 0}, "sums": {"weight": 1}})
    assert "gsm" in column(mixed.heldout, "source")
    assert "gsm" not in column(mixed.train, "source")


def test_a_source_says_how_many_of_its_own_are_held_out():
    mixed = run(SIZES, heldout=10, sources={"sums": {"heldout": 7}})
    assert Counter(column(mixed.heldout, "source")) == {"sums": 7, "gsm": 3, "made": 10}


def test_any_window_of_the_order_holds_roughly_the_proportions():
    mixed = run({"math": {"a": 300}, "code": {"b": 100}, "chat": {"c": 100}})
    assert column(mixed.train, "order") == list(range(500))
    domains = column(mixed.train, "domain")
    for start in range(0, 500, 50):
        window = Counter(domains[start : start + 50])
        assert abs(window["math"] - 30) <= 2
        assert abs(window["code"] - 10) <= 2


def test_a_share_larger_than_what_there_is_repeats_every_prompt_before_any_comes_again():
    mixed = run(SIZES, size=90, domains={"precise_if": {"quota": 50, "max_repeats": 2}})
    assert Counter(column(mixed.train, "domain")) == {"math": 40, "precise_if": 50}
    made = [(row["repeat"], row["prompt_id"]) for row in mixed.train.to_pylist() if row["domain"] == "precise_if"]
    assert [repeat for repeat, _ in made] == [0] * 40 + [1] * 10
    assert len(set(made[:40])) == 40
    assert {prompt for _, prompt in made[40:]} <= {prompt for _, prompt in made[:40]}
    assert [(row["prompts"], row["taken"]) for row in mixed.counts if row["source"] == "made"] == [(40, 50)]


def test_an_infinite_temperature_makes_domains_equal_and_an_emphasis_one_larger():
    equal = run(SIZES, size=60, temperature="inf")
    assert Counter(column(equal.train, "domain")) == {"math": 30, "precise_if": 30}
    emphasised = run(SIZES, size=50, temperature="inf", domains={"math": {"emphasis": 1.5}})
    assert Counter(column(emphasised.train, "domain")) == {"math": 30, "precise_if": 20}


def test_a_temperature_of_two_weighs_by_the_square_root():
    sizes = {"math": {"large": 400, "small": 100}}
    assert Counter(column(run(sizes, size=90, temperature=2).train, "source")) == {"large": 60, "small": 30}
    assert Counter(column(run(sizes, size=100).train, "source")) == {"large": 80, "small": 20}


def test_without_a_size_equal_shares_stop_where_the_largest_would_repeat():
    sizes = {"math": {"gsm": 80}, "code": {"mbpp": 30}}
    once = run(sizes, temperature="inf")
    assert Counter(column(once.train, "domain")) == {"math": 30, "code": 30}
    twice = run(sizes, temperature="inf", max_repeats=2)
    assert Counter(column(twice.train, "domain")) == {"math": 60, "code": 60}
    often = run(sizes, temperature="inf", max_repeats=9)
    assert Counter(column(often.train, "domain")) == {"math": 80, "code": 80}
    assert len(run(sizes, max_repeats=9).train) == 110


def with_levels(sizes):
    """A source `omega` whose prompts have a level."""
    rows = graded({"math": {"omega": sum(sizes.values())}}).to_pylist()
    levels = [name for name, size in sizes.items() for _ in range(size)]
    kept = [
        row | {"metadata": json.dumps({"columns": {"level": level}})} for row, level in zip(rows, levels, strict=True)
    ]
    return pa.concat_tables([build_table(kept, GRADED, "test"), graded({"math": {"gsm": 40}})])


def level(row):
    return json.loads(row["metadata"]).get("columns", {}).get("level")


def test_a_source_is_divided_by_a_column_that_it_keeps():
    table = with_levels({"easy": 50, "hard": 20})
    strata = {"by": "level", "shares": {"easy": {"weight": 1}, "hard": {"weight": 2}}}
    mixed = run(table, sources={"omega": {"quota": 30, "strata": strata}})
    assert Counter(map(level, mixed.train.to_pylist())) == {None: 40, "easy": 10, "hard": 20}
    assert {(row["stratum"], row["taken"]) for row in mixed.counts} == {("easy", 10), ("hard", 20), (None, 40)}
    held = run(table, heldout=0.3, sources={"omega": {"strata": {"by": "level"}}}).counts
    assert {row["stratum"]: row["available"] for row in held} == {"easy": 50, "hard": 20, None: 40}
    assert all(0 < row["heldout"] == row["available"] - row["prompts"] for row in held)
    exact = run(table, sources={"omega": {"strata": {"by": "level", "shares": {"easy": {"quota": 7}}}}})
    assert Counter(map(level, exact.train.to_pylist()))["easy"] == 7


@pytest.mark.parametrize(
    ("strata", "said"),
    [
        (
            {"by": "level", "shares": {"middle": {"weight": 1}}},
            r"strata\.shares: no stratum is called 'middle'.*; there are: easy",
        ),
        ({"by": "colour"}, r"has None in 'colour'; it must be text or a number, and a column that the source keeps"),
        (
            {"by": "level", "shares": {"easy": {"quota": 51}}},
            r"strata\.easy: its quota is 51 prompts, but 50 .*1 too many",
        ),
    ],
)
def test_a_stratum_that_is_not_there_is_one_error(strata, said):
    with pytest.raises(SpecError, match=said):
        run(with_levels({"easy": 50, "hard": 20}), sources={"omega": {"strata": strata}})


@settings(max_examples=examples(60), deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(1, 30)),
    size=st.none() | st.integers(1, 120),
    temperature=st.sampled_from([0.5, 1.0, 3.0, "inf"]),
    repeats=st.integers(1, 3),
    window=st.integers(5, 40),
)
def test_rows_are_conserved_and_every_window_holds_its_proportions(sizes, size, temperature, repeats, window):
    table = graded({"math": {"a": sizes[0], "b": sizes[1]}, "chat": {"c": sizes[2]}})
    try:
        mixed = run(table, size=size, temperature=temperature, max_repeats=repeats)
    except SpecError as refused:
        event(re.sub(r"\d+", "n", str(refused)))  # quotas exact or an error that says by how much: another test's
        return
    places = mixed.train.to_pylist()
    assert size is None or len(places) == size
    assert all(row["prompts"] <= row["taken"] <= repeats * row["available"] for row in mixed.counts)
    assert sum(row["taken"] for row in mixed.counts) == len(places)
    assert sum(row["prompts"] for row in mixed.counts) == len({row["prompt_id"] for row in places})
    assert len({(row["prompt_id"], row["repeat"]) for row in places}) == len(places)
    sources = [row["source"] for row in places]
    for row in mixed.counts:
        share = row["taken"] / len(places)
        for start in range(0, len(places) - window + 1, 7):
            assert abs(sources[start : start + window].count(row["source"]) - window * share) <= len(mixed.counts)


def test_equal_inputs_give_equal_bytes_whatever_the_order_of_the_rows(tmp_path):
    table = graded(SIZES)
    shuffled = pa.concat_tables([table.slice(50), table.slice(0, 50)])
    digests = set()
    for name, rows in (("a", table), ("b", shuffled)):
        mixed = run(rows, heldout=5, size=80)
        write_table(tmp_path / name, mixed.train, MIXTURE)
        write_table(tmp_path / (name + "-held"), mixed.heldout, GRADED)
        digests.add(tuple((tmp_path / each).read_bytes() for each in (name, name + "-held")))
    assert len(digests) == 1
    assert file_digest(tmp_path / "a") != file_digest(tmp_path / "a-held")


def test_another_seed_gives_another_mixture():
    assert column(run(SIZES, seed=0).train, "prompt_id") != column(run(SIZES, seed=1).train, "prompt_id")


def test_rows_of_another_domain_move_no_prompt_between_train_and_held_out():
    before = run(SIZES, heldout=10)
    after = run({**SIZES, "code": {"mbpp": 30}}, heldout=10)
    assert set(column(before.heldout, "prompt_id")) <= set(column(after.heldout, "prompt_id"))
    assert set(column(before.train, "prompt_id")) <= set(column(after.train, "prompt_id"))


def test_rows_of_another_source_only_hand_held_out_prompts_to_training():
    before = run(SIZES, heldout=10)
    after = run({**SIZES, "math": {**SIZES["math"], "new": 80}}, heldout=10)
    old = set(column(before.train, "prompt_id"))
    assert not old & set(column(after.heldout, "prompt_id"))


def test_a_share_that_is_too_large_names_the_options_behind_it_and_the_size_that_fits():
    shares = {"temperature": "inf", "domains": {"precise_if": {"emphasis": 3}}}
    with pytest.raises(SpecError) as caught:
        run(SIZES, size=60, **shares)  # 3 of 4 parts of 60 are 45, and 40 are there
    message = str(caught.value)
    assert "domains.precise_if: its share is 45 prompts, but 40 are available" in message
    assert "size = 60 and temperature = inf and its emphasis 3" in message
    assert "fit 53 prompts" in message  # 40 and a third of them
    assert run(SIZES, size=53, **shares).train.num_rows == 53
    with pytest.raises(SpecError, match="its share is 41 prompts"):
        run(SIZES, size=55, **shares)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"sources": {"sums": {"quota": 21}}}, ["sources.sums", "21", "20 are available"]),
        ({"domains": {"math": {"quota": 81}}}, ["domains.math", "81", "80 are available"]),
        ({"size": 121}, ["domains", "available"]),
        ({"heldout": 41}, ["heldout = 41", "precise_if", "40"]),
        ({"heldout": 30, "sources": {"sums": {"heldout": 21}}}, ["sources.sums: heldout", "21", "20"]),
        ({"sources": {"gms": {"weight": 1}}}, ["mixture.sources", "'gms'", "did you mean 'gsm'"]),
        ({"domains": {"code": {"weight": 1}}}, ["mixture.domains", "'code'", "there are: math"]),
        ({"domains": {"math": {"weight": 1}}}, ["weight", "domains.precise_if"]),
        (
            {"domains": {"math": {"weight": 1}, "precise_if": {"weight": 9}}, "sources": {"gsm": {"quota": 30}}},
            ["domains.math", "quotas within add up to 30"],
        ),
        ({"size": 5, "sources": {"sums": {"quota": 20}, "gsm": {"quota": 60}}}, ["size", "80"]),
        ({"domains": {"math": {"weight": 0}, "precise_if": {"weight": 0}}}, ["no prompt is left"]),
        (
            {"domains": {"math": {"weight": 1}, "precise_if": {"weight": 1, "heldout": 40}}},
            ["no prompt is left", "domain 'precise_if' has none except those held out"],
        ),
    ],
)
def test_a_share_that_cannot_be_filled_is_one_error_that_names_it(spec, said):
    with pytest.raises(SpecError) as caught:
        run(SIZES, **spec)
    assert all(each in str(caught.value) for each in said), str(caught.value)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"sources": {"gsm": {"weight": -1}}}, "m: sources.gsm.weight = -1: must be greater than or equal to 0"),
        ({"sources": {"gsm": {"quota": 0}}}, "m: sources.gsm.quota = 0: must be greater than or equal to 1"),
        (
            {"sources": {"gsm": {"quotta": 1}}},
            "unknown key (did you mean 'quota'?); accepted: emphasis, heldout, max_repeats, quota, strata, weight",
        ),
        ({"domains": {"math": {"quota": 1, "weight": 2}}}, "give a weight (2.0) or a quota (1), not both"),
        ({"name": "x", "sources": [], "mixture": {"size": 3}}, "this is a data file: give a file with what is below"),
    ],
)
def test_a_mistake_in_the_spec_is_one_sentence(spec, said):
    with pytest.raises(ValidationError) as caught:
        MixtureSpec.model_validate(spec)
    assert said in explain(caught.value, "m", MixtureSpec)


def test_no_prompts_is_an_error():
    with pytest.raises(SpecError, match="no graded prompts"):
        run(GRADED.empty_table())


def test_a_prompt_that_stands_twice_is_an_error():
    table = graded({"math": {"gsm": 3}})
    with pytest.raises(TableError, match="several rows"):
        run(pa.concat_tables([table, table]))


def test_a_mixture_that_its_sources_could_never_fill_is_found_before_grading():
    prompts = graded({"math": {"gsm": 4}}).select(PROMPTS.names)
    check(prompts, MixtureSpec(heldout=2))
    with pytest.raises(SpecError, match="9"):
        check(prompts, MixtureSpec(heldout=9))


def with_texts(source, *texts, cluster=None):
    """A graded table of a source with these prompts."""
    table = graded({"math": {source: len(texts)}})
    rows = [
        row
        | {
            "messages": [{"role": "user", "content": text}],
            "cluster": None if cluster is None else cluster.hex(),
        }
        for row, text in zip(table.to_pylist(), texts, strict=True)
    ]
    return build_table(rows, GRADED, "test")


@settings(max_examples=examples(60), deadline=None)
@given(
    share=st.floats(0.05, 0.9),
    sizes=st.tuples(st.integers(20, 60), st.integers(0, 30)),
    growth=st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_by_a_share_no_prompt_changes_sides_when_sources_grow(share, sizes, growth):
    def sides(gsm, sums):
        sources = {name: size for name, size in (("gsm", gsm), ("sums", sums)) if size}
        mixed = run({"math": sources, "chat": {"more": 30}}, heldout=share, domains={"chat": {"heldout": 0}})
        return set(column(mixed.train, "prompt_id")), set(column(mixed.heldout, "prompt_id"))

    train, heldout = sides(*sizes)
    later_train, later_heldout = sides(*(size + more for size, more in zip(sizes, growth, strict=True)))
    assert train <= later_train
    assert heldout <= later_heldout


def test_a_share_holds_out_about_that_many():
    assert 250 <= len(run({"math": {"gsm": 3000}}, heldout=0.1).heldout) <= 350


def test_a_domain_and_a_source_may_have_shares_or_numbers_of_their_own():
    sizes = {"math": {"gsm": 200, "sums": 100}, "precise_if": {"made": 40}}
    mixed = run(sizes, heldout=0.5, domains={"precise_if": {"heldout": 7}}, sources={"sums": {"heldout": 3}})
    found = Counter(column(mixed.heldout, "source"))
    assert (found["sums"], found["made"]) == (3, 7)
    assert 70 <= found["gsm"] <= 130


def test_one_text_is_on_one_side_whatever_its_source_and_answer():
    texts = [f"What is {number}?" for number in range(200)]
    shared = pa.concat_tables([with_texts("gsm", *texts), with_texts("sums", *map(str.upper, texts))])
    mixed = run(shared, heldout=0.5)
    train, held = ({text.lower() for text in contents(table)} for table in (mixed.train, mixed.heldout))
    assert not train & held
    assert len(mixed.heldout) == 2 * len(held)
    assert len(mixed.set_aside) == 0


def test_by_a_number_what_is_like_a_held_out_prompt_is_set_aside_from_training():
    texts = [f"What is {number}?" for number in range(50)]
    shared = pa.concat_tables([with_texts("gsm", *texts), with_texts("sums", *map(str.upper, texts))])
    mixed = run(shared, heldout=20, sources={"sums": {"heldout": 0}})
    train, held = ({text.lower() for text in contents(table)} for table in (mixed.train, mixed.heldout))
    assert not train & held
    assert len(mixed.heldout) == 20
    assert len(mixed.set_aside) == 20
    [clash] = {row["clashed_with"] for row in mixed.set_aside.to_pylist()[:1]}
    assert clash in column(mixed.heldout, "prompt_id")


def test_near_duplicates_that_cleaning_keeps_together_are_on_one_side():
    together = with_texts("gsm", *(f"Take {number}." for number in range(30)), cluster=b"0123456789abcdef")
    mixed = run(
        pa.concat_tables([together, with_texts("sums", *(f"Add {number}." for number in range(60)))]), heldout=0.5
    )
    sides = [{name in column(table, "source") for table in (mixed.train, mixed.heldout)} for name in ("gsm", "sums")]
    assert sides == [{True, False}, {True}]


def test_the_first_of_those_that_are_alike_stays_on_its_side_when_another_joins_it():
    alone = with_texts("gsm", *(f"Take {number}." for number in range(40)))
    keys = compute_prompt_keys(alone.column("messages"))
    joined = [row | {"cluster": key.hex()} for row, key in zip(alone.to_pylist(), keys, strict=True)]
    before, after = (run(table, heldout=0.5) for table in (alone, build_table(joined, GRADED, "test")))
    assert set(column(before.heldout, "prompt_id")) == set(column(after.heldout, "prompt_id"))


def test_a_column_of_the_users_that_is_called_cluster_decides_nothing():
    rows = [row | {"metadata": '{"columns":{"cluster":"x"}}'} for row in graded(SIZES).to_pylist()]
    table = build_table(rows, GRADED, "test")
    assert column(run(table, heldout=9).heldout, "prompt_id") == column(run(SIZES, heldout=9).heldout, "prompt_id")


def contents(table):
    return [messages[-1]["content"] for messages in column(table, "messages")]


@pytest.mark.parametrize("heldout", [-1, 1.0, 1.5, -0.5, True, "half"])
def test_what_is_held_out_is_a_number_or_a_share(heldout):
    with pytest.raises(ValidationError) as caught:
        MixtureSpec.model_validate({"heldout": heldout})
    [said] = explain(caught.value, "m", MixtureSpec).splitlines()
    assert said.startswith(f"m: heldout = {heldout!r}: ")
    assert "must be a number of prompts (a whole number from 0 on) or a share of them (between 0 and 1)" in said


def test_tables_in_parts_of_any_size_are_mixed_alike(monkeypatch):
    whole = run(SIZES, heldout=3, max_repeats=2, size=150)
    monkeypatch.setattr(parquet, "PART_BYTES", 5000)
    parts = run(SIZES, heldout=3, max_repeats=2, size=150)
    assert parts.train.column("order").to_pylist() == list(range(150))
    assert (parts.train, parts.heldout, parts.counts) == (whole.train, whole.heldout, whole.counts)


def test_what_a_share_leaves_over_is_counted_by_source_and_what_is_like_a_held_out_prompt_is_not():
    assert left_over(run(SIZES)) == {}
    equal = run({"math": {"gsm": 60, "sums": 20}}, sources={"gsm": {"weight": 1}, "sums": {"weight": 1}}, heldout=0)
    assert left_over(equal) == {"gsm": 40}
    clustered = graded({"math": {"gsm": 40}})
    position = clustered.schema.get_field_index("cluster")
    alike = pa.array(["ab" * 32] * 10 + [None] * 30, clustered.schema.field("cluster").type)
    mixed = mix(clustered.set_column(position, clustered.schema.field("cluster"), alike), MixtureSpec(heldout=39))
    assert left_over(mixed) == {}


def test_a_headline_names_the_sources_that_leave_most_over():
    assert _describe_left_over({}) == ""
    assert _describe_left_over({"csv": 1094, "pq": 3}) == "; left over: 1,094 of csv, 3 of pq"
    assert _describe_left_over(dict.fromkeys("abcde", 1)) == "; left over: 1 of a, 1 of b, 1 of c and 2 more sources"
