import pandas

ledger = pandas.read_parquet("outputs/latest/ledger.parquet")
prompts = pandas.read_parquet("outputs/latest/prompts.parquet")
trained = ledger[ledger.fate == "trained"].merge(prompts, on="prompt_id", suffixes=("", "_of_prompt"))
print(trained[["step", "prompt_id", "source", "row", "scores"]].to_string(index=False))
