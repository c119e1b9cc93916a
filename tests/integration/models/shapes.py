"""GGUF files shaped as real models, without their weights: sparse, so that they take no room whatever their size."""

import struct

U16, U32, I32, F32, BOOL, TEXT, ARRAY = 2, 4, 5, 6, 7, 8, 9
F16, Q8_0, Q4_K, MXFP4 = 1, 8, 12, 39
BLOCKS = {0: (1, 4), F16: (1, 2), Q8_0: (32, 34), Q4_K: (256, 144), MXFP4: (32, 17)}
ALIGNMENT = 32


def text(value):
    return struct.pack('<Q', len(value)) + value.encode()


class Short(int):
    """A number of 16 bits."""


class Signed(int):
    """A number of 32 bits with a sign."""


def value_of(value):
    if isinstance(value, Short):
        return U16, struct.pack('<H', value)
    if isinstance(value, Signed):
        return I32, struct.pack('<i', value)
    if isinstance(value, bool):
        return BOOL, struct.pack('<B', value)
    if isinstance(value, int):
        return U32, struct.pack('<I', value)
    if isinstance(value, float):
        return F32, struct.pack('<f', value)
    if isinstance(value, str):
        return TEXT, text(value)
    kind = value_of(value[0])[0]
    return ARRAY, struct.pack('<IQ', kind, len(value)) + b''.join(value_of(item)[1] for item in value)


def header_of(metadata, tensors, version=3):
    """`tensors`: (name, shape, type). Returns the header, padded, and how many bytes of data follow."""
    out = b'GGUF' + struct.pack('<IQQ', version, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, data = value_of(value)
        out += text(key) + struct.pack('<I', kind) + data
    offset = 0
    for name, shape, kind in tensors:
        out += text(name) + struct.pack(f'<I{len(shape)}QIQ', len(shape), *shape, kind, offset)
        block, size = BLOCKS[kind]
        elements = 1
        for side in shape:
            elements *= side
        offset += (elements // block * size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    return out + b'\0' * (-len(out) % ALIGNMENT), offset


def write(path, metadata, tensors, version=3):
    header, data = header_of(metadata, tensors, version)
    with open(path, 'wb') as file:
        file.write(header)
        file.truncate(len(header) + data)
    return path


def write_split(prefix, metadata, tensors, parts):
    """As gguf-split does: all metadata in the first part."""
    names = [f'{prefix}-{number:05}-of-{parts:05}.gguf' for number in range(1, parts + 1)]
    each = -(-len(tensors) // parts)
    for number, name in enumerate(names):
        own = {'split.no': Short(number), 'split.count': Short(parts), 'split.tensors.count': Signed(len(tensors))}
        write(name, {**(metadata if number == 0 else {}), **own}, tensors[number * each:(number + 1) * each])
    return names


class Shape:
    """A model: `metadata` by key without the architecture's prefix, and `tensors`."""

    def __init__(self, architecture, layers, embedding, vocabulary=32000, kind=F16, **figures):
        self.architecture, self.layers, self.embedding, self.kind = architecture, layers, embedding, kind
        self.metadata = {'general.architecture': architecture, 'tokenizer.ggml.model': 'none'}
        self.set(block_count=layers, embedding_length=embedding, context_length=131072, vocab_size=vocabulary)
        self.set(**{'attention.layer_norm_rms_epsilon': 1e-5, **figures})
        self.tensors = []
        self.add('token_embd', embedding, vocabulary)
        self.add('output_norm', embedding)

    def set(self, **figures):
        for key, value in figures.items():
            self.metadata[f'{self.architecture}.{key}'] = value

    def get(self, key):
        return self.metadata[f'{self.architecture}.{key}']

    def add(self, name, *shape, suffix='.weight'):
        vector = len(shape) == 1 or 'norm' in name or 'ffn_gate_inp' in name or 'conv1d' in name
        self.tensors.append((name + suffix, shape, 0 if vector else self.kind))

    def attention(self, layer, heads, kv_heads, key, value=None):
        value = value or key
        blk = f'blk.{layer}.'
        self.add(blk + 'attn_norm', self.embedding)
        self.add(blk + 'attn_q', self.embedding, heads * key)
        self.add(blk + 'attn_k', self.embedding, kv_heads * key)
        self.add(blk + 'attn_v', self.embedding, kv_heads * value)
        self.add(blk + 'attn_output', heads * value, self.embedding)

    def feed_forward(self, layer, width):
        blk = f'blk.{layer}.'
        self.add(blk + 'ffn_norm', self.embedding)
        self.add(blk + 'ffn_gate', self.embedding, width)
        self.add(blk + 'ffn_up', self.embedding, width)
        self.add(blk + 'ffn_down', width, self.embedding)

    def experts(self, layer, count, width):
        blk = f'blk.{layer}.'
        self.add(blk + 'ffn_norm', self.embedding)
        self.add(blk + 'ffn_gate_inp', self.embedding, count)
        self.add(blk + 'ffn_gate_exps', self.embedding, width, count)
        self.add(blk + 'ffn_up_exps', self.embedding, width, count)
        self.add(blk + 'ffn_down_exps', width, self.embedding, count)


def dense(layers=32, embedding=4096, vocabulary=128256, kind=F16, width=14336, heads=32, kv_heads=8):
    """As Llama 3.1 8B, 16 GiB."""
    size = embedding // heads
    it = Shape('llama', layers, embedding, vocabulary, kind, feed_forward_length=width,
               **{'attention.head_count': heads, 'attention.head_count_kv': kv_heads, 'rope.dimension_count': size})
    it.add('output', embedding, vocabulary)
    for layer in range(layers):
        it.attention(layer, heads, kv_heads, size)
        it.feed_forward(layer, width)
    return it


def quantised():
    """As a 70B in Q4_K, 40 GB."""
    return dense(80, 8192, 128256, Q4_K, width=28672, heads=64)


def experts(layers=94, embedding=4096, vocabulary=151936, count=128, width=1536, heads=64, kv_heads=4, size=128):
    """As Qwen3 235B A22B."""
    it = Shape('qwen3moe', layers, embedding, vocabulary, Q8_0, feed_forward_length=12288, expert_count=count,
               expert_used_count=8, expert_feed_forward_length=width,
               **{'attention.head_count': heads, 'attention.head_count_kv': kv_heads, 'attention.key_length': size,
                  'attention.value_length': size})
    it.add('output', embedding, vocabulary)
    for layer in range(layers):
        it.attention(layer, heads, kv_heads, size)
        it.add(f'blk.{layer}.attn_q_norm', size)
        it.add(f'blk.{layer}.attn_k_norm', size)
        it.experts(layer, count, width)
    return it


def windows(layers=48, embedding=3840, vocabulary=262208, width=15360, heads=16, kv_heads=8, size=256):
    """As Gemma 3 12B: five layers with a window, one without; one matrix for the words in and out."""
    it = Shape('gemma3', layers, embedding, vocabulary, feed_forward_length=width,
               **{'attention.head_count': heads, 'attention.head_count_kv': kv_heads, 'attention.key_length': size,
                  'attention.value_length': size, 'attention.sliding_window': 1024})
    for layer in range(layers):
        it.attention(layer, heads, kv_heads, size)
        for name in ('attn_q_norm', 'attn_k_norm'):
            it.add(f'blk.{layer}.{name}', size)
        for name in ('post_attention_norm', 'post_ffw_norm'):
            it.add(f'blk.{layer}.{name}', embedding)
        it.feed_forward(layer, width)
    return it


def windows_and_experts():
    """As gpt-oss 20B: every other layer with a window; experts in MXFP4."""
    it = Shape('gpt-oss', 24, 2880, 201088, Q8_0, feed_forward_length=2880, expert_count=32, expert_used_count=4,
               expert_feed_forward_length=2880,
               **{'attention.head_count': 64, 'attention.head_count_kv': 8, 'attention.key_length': 64,
                  'attention.value_length': 64, 'attention.sliding_window': 128, 'rope.dimension_count': 64})
    it.add('output', 2880, 201088)
    for layer in range(24):
        blk = f'blk.{layer}.'
        it.attention(layer, 64, 8, 64)
        for name, width in (('attn_q', 4096), ('attn_k', 512), ('attn_v', 512), ('attn_output', 2880)):
            it.add(blk + name, width, suffix='.bias')
        it.add(blk + 'post_attention_norm', 2880)
        it.add(blk + 'attn_sinks', 64)
        it.add(blk + 'ffn_gate_inp', 2880, 32)
        it.tensors.append((blk + 'ffn_gate_inp.bias', (32,), 0))
        for name in ('ffn_gate_exps', 'ffn_up_exps', 'ffn_down_exps'):
            it.tensors.append((blk + name + '.weight', (2880, 2880, 32), MXFP4))
            it.tensors.append((blk + name + '.bias', (2880, 32), 0))
    return it


def latent():
    """As DeepSeek V3, of 16 layers: multi-head latent attention."""
    layers, embedding = 16, 7168
    it = Shape('deepseek2', layers, embedding, 129280, Q8_0, feed_forward_length=18432, expert_count=256,
               expert_used_count=8, expert_feed_forward_length=2048, expert_shared_count=1,
               expert_weights_scale=2.5, expert_weights_norm=True, expert_gating_func=2, leading_dense_block_count=3,
               **{'attention.head_count': 128, 'attention.head_count_kv': 1, 'attention.key_length': 576,
                  'attention.value_length': 512, 'attention.key_length_mla': 192, 'attention.value_length_mla': 128,
                  'attention.q_lora_rank': 1536, 'attention.kv_lora_rank': 512, 'rope.dimension_count': 64})
    it.add('output', embedding, 129280)
    for layer in range(layers):
        blk = f'blk.{layer}.'
        it.add(blk + 'attn_norm', embedding)
        it.add(blk + 'attn_q_a', embedding, 1536)
        it.add(blk + 'attn_q_a_norm', 1536)
        it.add(blk + 'attn_q_b', 1536, 128 * 192)
        it.add(blk + 'attn_kv_a_mqa', embedding, 576)
        it.add(blk + 'attn_kv_a_norm', 512)
        it.add(blk + 'attn_k_b', 128, 512, 128)
        it.add(blk + 'attn_v_b', 512, 128, 128)
        it.add(blk + 'attn_output', 128 * 128, embedding)
        if layer < 3:
            it.feed_forward(layer, 18432)
            continue
        it.experts(layer, 256, 2048)
        it.tensors.append((blk + 'exp_probs_b.bias', (256,), 0))
        it.add(blk + 'ffn_gate_shexp', embedding, 2048)
        it.add(blk + 'ffn_up_shexp', embedding, 2048)
        it.add(blk + 'ffn_down_shexp', 2048, embedding)
    return it


def hybrid():
    """As LFM2 1.2B: short convolutions, and attention where a layer has heads."""
    attention = {2, 5, 8, 10, 12, 14}
    it = Shape('lfm2', 16, 2048, 65536, feed_forward_length=8192,
               **{'attention.head_count': 32, 'attention.head_count_kv': [8 if i in attention else 0 for i in range(16)],
                  'shortconv.l_cache': 3})
    it.tensors[1] = ('token_embd_norm.weight', (2048,), 0)
    for layer in range(16):
        blk = f'blk.{layer}.'
        if layer in attention:
            it.attention(layer, 32, 8, 64)
            it.add(blk + 'attn_q_norm', 64)
            it.add(blk + 'attn_k_norm', 64)
        else:
            it.add(blk + 'attn_norm', 2048)
            it.tensors.append((blk + 'shortconv.conv.weight', (3, 2048), 0))
            it.add(blk + 'shortconv.in_proj', 2048, 6144)
            it.add(blk + 'shortconv.out_proj', 2048, 2048)
        it.feed_forward(layer, 8192)
    return it


def recurrent_and_attention():
    """As Qwen3-Next, of 12 layers: three linear ones, one with attention."""
    layers, embedding, inner, state, groups, heads = 12, 2048, 4096, 128, 16, 32
    it = Shape('qwen3next', layers, embedding, 151936, Q8_0, feed_forward_length=5120, expert_count=64,
               expert_used_count=10, expert_feed_forward_length=512, expert_shared_feed_forward_length=512,
               **{'attention.head_count': 16, 'attention.head_count_kv': 2, 'attention.key_length': 256,
                  'attention.value_length': 256, 'ssm.conv_kernel': 4, 'ssm.inner_size': inner, 'ssm.state_size': state,
                  'ssm.time_step_rank': heads, 'ssm.group_count': groups, 'full_attention_interval': 4,
                  'rope.dimension_count': 64})
    it.add('output', embedding, 151936)
    for layer in range(layers):
        blk = f'blk.{layer}.'
        it.add(blk + 'attn_norm', embedding)
        it.add(blk + 'post_attention_norm', embedding)
        if (layer + 1) % 4 == 0:
            it.add(blk + 'attn_q', embedding, 256 * 16 * 2)
            it.add(blk + 'attn_k', embedding, 512)
            it.add(blk + 'attn_v', embedding, 512)
            it.add(blk + 'attn_output', 256 * 16, embedding)
            it.add(blk + 'attn_q_norm', 256)
            it.add(blk + 'attn_k_norm', 256)
        else:
            width = inner + 2 * groups * state
            it.add(blk + 'attn_qkv', embedding, width)
            it.add(blk + 'attn_gate', embedding, inner)
            it.add(blk + 'ssm_conv1d', 4, width)
            it.add(blk + 'ssm_dt', heads, suffix='.bias')
            it.tensors.append((blk + 'ssm_a', (heads,), 0))
            it.add(blk + 'ssm_ba', embedding, 2 * heads)
            it.add(blk + 'ssm_norm', inner // heads)
            it.add(blk + 'ssm_out', inner, embedding)
        it.experts(layer, 64, 512)
        it.tensors.pop(-4 - 1)  # its norm is the one after attention
        it.add(blk + 'ffn_gate_inp_shexp', embedding)
        it.add(blk + 'ffn_gate_shexp', embedding, 512)
        it.add(blk + 'ffn_up_shexp', embedding, 512)
        it.add(blk + 'ffn_down_shexp', 512, embedding)
    return it


def recurrent():
    """As Mamba 2.8B."""
    layers, embedding, inner, state, rank = 64, 2560, 5120, 16, 160
    it = Shape('mamba', layers, embedding, 50288, **{'ssm.conv_kernel': 4, 'ssm.inner_size': inner,
                                                     'ssm.state_size': state, 'ssm.time_step_rank': rank,
                                                     'feed_forward_length': 0, 'attention.head_count': 0})
    it.add('output', embedding, 50288)
    for layer in range(layers):
        blk = f'blk.{layer}.'
        it.add(blk + 'attn_norm', embedding)
        it.add(blk + 'ssm_in', embedding, 2 * inner)
        it.add(blk + 'ssm_conv1d', 4, inner)
        it.add(blk + 'ssm_conv1d', inner, suffix='.bias')
        it.add(blk + 'ssm_x', inner, rank + 2 * state)
        it.add(blk + 'ssm_dt', rank, inner)
        it.add(blk + 'ssm_dt', inner, suffix='.bias')
        it.tensors.append((blk + 'ssm_a', (state, inner), 0))
        it.tensors.append((blk + 'ssm_d', (inner,), 0))
        it.add(blk + 'ssm_out', inner, embedding)
    return it


# A GPU in software takes no tensor of more than 128 MiB.

def narrow():
    return dense(24, 2048, 16000, width=5632, kv_heads=4)


def narrow_experts():
    return experts(24, 1024, 16000, count=64, width=512, heads=16, size=64)


def narrow_windows():
    return windows(24, 1536, 16000, width=4096, heads=8, kv_heads=4, size=128)


ALL = (dense, quantised, experts, windows, windows_and_experts, latent, hybrid, recurrent_and_attention, recurrent)
FOR_GPU = (narrow, narrow_experts, narrow_windows)
