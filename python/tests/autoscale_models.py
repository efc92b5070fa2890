"""Small models with random weights, as torch and Hugging Face define them, and one loop that trains them."""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 100


def ids() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (4, 16), generator=torch.Generator().manual_seed(3))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True), 2)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self):
        x = ids()
        logits = self.head(self.encoder(self.embedding(x)))
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), x.flip(1).reshape(-1))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.head = nn.Linear(8, 10)

    def forward(self):
        generator = torch.Generator().manual_seed(4)
        x = self.stem(torch.randn(8, 3, 8, 8, generator=generator))
        y = F.relu(self.norms[0](self.convolutions[0](x)))
        x = F.max_pool2d(F.relu(x + self.norms[1](self.convolutions[1](y))), 2)
        return F.cross_entropy(self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)), torch.arange(8))


class Transformers(nn.Module):
    """A model of Hugging Face with its own loss."""

    def __init__(self, model, **inputs):
        super().__init__()
        self.model = model
        self.inputs = inputs

    def forward(self):
        return self.model(input_ids=ids(), labels=ids(), **self.inputs).loss


def bert():
    from transformers import BertConfig, BertForMaskedLM

    mask = torch.ones(4, 16, dtype=torch.int64)
    mask[0, 10:] = 0
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    return Transformers(BertForMaskedLM(config), attention_mask=mask)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0)
    return Transformers(GPT2LMHeadModel(config))


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
    return Transformers(T5ForConditionalGeneration(config))


class Ours(nn.Module):
    """The model of plimsoll.pytorch's modules."""

    def __init__(self):
        super().__init__()
        import plimsoll.pytorch as te

        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.layer = te.TransformerLayer(
            32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, self_attn_mask_type="causal", attn_input_format="bshd"
        )
        self.head = te.LayerNormLinear(32, VOCABULARY)

    def forward(self):
        x = ids()
        return F.cross_entropy(self.head(self.layer(self.embedding(x))).reshape(-1, VOCABULARY), x.reshape(-1))


MODELS = {"encoder": Encoder, "resnet": ResNet, "bert": bert, "gpt2": gpt2, "t5": t5, "ours": Ours}


def train(name, steps, prepare, scope=contextlib.nullcontext):
    """The losses of `steps` steps of AdamW, and the model. prepare: what is done to it before. scope: of each step's passes."""
    torch.manual_seed(1)
    model = prepare(MODELS[name]().train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for index in range(steps):
        torch.manual_seed(100 + index)  # of the dropout
        optimizer.zero_grad()
        with scope():
            loss = model()
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64), model
