"""Load an exported folder with transformers alone and write a continuation. Usage: sample.py FOLDER [PROMPT]."""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    folder = sys.argv[1]
    prompt = sys.argv[2] if len(sys.argv) > 2 else "It was a truth"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    print(f"AutoModelForCausalLM: {type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters,")
    print(f"missing keys {sorted(info['missing_keys'])}, unexpected keys {sorted(info['unexpected_keys'])}")
    torch.manual_seed(1)
    ids = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    out = model.generate(**ids, max_new_tokens=60, do_sample=True, temperature=0.7, top_p=0.9)
    print(f"\n{tokenizer.decode(out[0], skip_special_tokens=True)}")


if __name__ == "__main__":
    main()
