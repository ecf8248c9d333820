// Messages are an 8-byte little-endian length and JSON. Values travel tagged, so that what arrives
// is always a plain built-in object: an __eq__ of the candidate's making stays behind.
#include "eval/grading/program_drivers.h"

namespace cbench {
namespace {

constexpr const char* kCodec = R"py(
import json, sys
sys.path[:] = [p for p in sys.path if p]
LIMIT = 1 << 26

class Opaque:
    """Stands for an object that cannot travel: equal to nothing, without operations."""
    __hash__ = None
    def __eq__(self, other): return False

def encode(v, depth=0):
    if depth > 100: raise ValueError('nested too deeply')
    if v is None or v is True or v is False: return v
    t = type(v)
    d = depth + 1
    if isinstance(v, str): return str.__str__(v) if t is str else ''.join(v)
    if isinstance(v, int): return ['int', hex(int(v))]
    if isinstance(v, float): return ['float', float.hex(float(v))]
    if isinstance(v, complex): return ['complex', v.real.hex(), v.imag.hex()]
    if isinstance(v, (bytes, bytearray)): return ['bytes', bytes(v).hex()]
    if isinstance(v, list): return ['list', [encode(x, d) for x in v]]
    if isinstance(v, tuple): return ['tuple', [encode(x, d) for x in v]]
    if isinstance(v, (set, frozenset)): return ['set', [encode(x, d) for x in v]]
    if isinstance(v, dict): return ['dict', [[encode(k, d), encode(x, d)] for k, x in v.items()]]
    if t is range: return ['range', hex(v.start), hex(v.stop), hex(v.step)]
    if t in (type({}.keys()), type({}.items())): return ['set', [encode(x, d) for x in v]]
    if t.__name__ in ('Decimal', 'Fraction') and t.__module__ in ('decimal', 'fractions'):
        return [t.__name__, str(v)]
    if hasattr(t, '__next__'):
        out = []
        for x in v:
            out.append(encode(x, d))
            if len(out) > 100000: raise ValueError('iterator too long')
        return ['iterator', out]
    return ['opaque']

def decode(x, depth=0):
    if depth > 250: raise ValueError('nested too deeply')
    if x is None or x is True or x is False or type(x) is str: return x
    tag, d = x[0], depth + 1
    if tag == 'int': return int(x[1], 16)
    if tag == 'float': return float.fromhex(x[1])
    if tag == 'complex': return complex(float.fromhex(x[1]), float.fromhex(x[2]))
    if tag == 'bytes': return bytes.fromhex(x[1])
    if tag == 'list': return [decode(y, d) for y in x[1]]
    if tag == 'tuple': return tuple([decode(y, d) for y in x[1]])
    if tag == 'set': return {decode(y, d) for y in x[1]}
    if tag == 'dict': return {decode(k, d): decode(y, d) for k, y in x[1]}
    if tag == 'range': return range(int(x[1], 16), int(x[2], 16), int(x[3], 16))
    if tag == 'iterator': return iter([decode(y, d) for y in x[1]])
    if tag == 'Decimal':
        import decimal
        return decimal.Decimal(x[1])
    if tag == 'Fraction':
        import fractions
        return fractions.Fraction(x[1])
    if tag == 'opaque': return Opaque()
    raise ValueError('unknown tag')

def send(file, message):
    data = json.dumps(message).encode('ascii')
    file.write(len(data).to_bytes(8, 'little') + data)
    file.flush()

def receive(file):
    head = file.read(8)
    if len(head) != 8: raise EOFError
    size = int.from_bytes(head, 'little')
    if size > LIMIT: raise ValueError('message too long')
    data = file.read(size)
    if len(data) != size: raise EOFError
    return json.loads(data)
)py";

constexpr const char* kCandidate = R"py(
def main():
    import random
    random.seed(0)
    source = json.load(sys.stdin)
    reader, writer = open(3, 'rb', closefd=False), open(3, 'wb', closefd=False)
    try:
        space = {}
        exec(compile(source['source'], 'program', 'exec', optimize=0), space)
        function = space[source['entry_point']]
    except BaseException as error:
        return send(writer, {'error': type(error).__name__})
    send(writer, {'ready': True})
    while True:
        try:
            call = receive(reader)
        except EOFError:
            return
        args, kwargs = decode(call['args']), decode(call['kwargs'])
        try:
            result = encode(function(*args, **kwargs))
            after = [encode(a) if isinstance(a, (list, dict, set)) else None for a in args]
            reply = {'result': result, 'args': after}
        except BaseException as error:
            reply = {'error': type(error).__name__}
        send(writer, reply)
main()
)py";

constexpr const char* kJudge = R"py(
class Left(BaseException): pass
class Protocol(BaseException): pass
class Load(BaseException): pass

def words(reply):
    return ''.join(c for c in str(reply.get('error'))[:60] if c.isidentifier() or c.isdigit())

def exchange(reader, writer, message):
    try:
        if message is not None: send(writer, message)
        reply = receive(reader)
        if type(reply) is not dict: raise ValueError
        return reply
    except (EOFError, OSError): raise Left
    except (ValueError, RecursionError, MemoryError): raise Protocol

def raise_like(name):
    import builtins
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try: error = kind('raised by the candidate')
        except TypeError: error = RuntimeError(name)
        raise error
    raise RuntimeError(name)

def proxy(reader, writer):
    def candidate(*args, **kwargs):
        reply = exchange(reader, writer, {'args': encode(args), 'kwargs': encode(kwargs)})
        if 'error' in reply: raise_like(words(reply))
        try:
            result, after = decode(reply['result']), [decode(x) for x in reply['args']]
        except Exception: raise Protocol
        for old, new in zip(args, after):  # what the call changed in place
            if type(old) is list and type(new) is list: old[:] = new
            elif type(old) in (dict, set) and type(new) is type(old): old.clear(); old.update(new)
        return result
    return candidate

def set_up(spec, candidate):
    space = {}
    for prompt in (spec['prompt'], spec['prompt'] + '    pass\n', ''):
        try:
            code = compile(prompt, 'prompt', 'exec', optimize=0)
            break
        except SyntaxError: pass
    exec(code, space)
    space[spec['entry_point']] = candidate
    exec(compile(spec['test'], 'test', 'exec', optimize=0), space)
    return space['check']

def verdict(spec):
    import random
    random.seed(0)
    reader, writer = open(3, 'rb', closefd=False), open(3, 'wb', closefd=False)
    candidate = proxy(reader, writer)
    try: check = set_up(spec, candidate)
    except Exception: return 'bad_item'
    try:
        first = exchange(reader, writer, None)
        if 'error' in first: return 'load: ' + words(first)
        check(candidate)
        return 'passed'
    except Left: return 'ended'
    except Protocol: return 'protocol'
    except AssertionError: return 'assertion'
    except BaseException as error: return 'error: ' + type(error).__name__

def main():
    import os
    spec = json.load(sys.stdin)
    os.write(4, (spec['nonce'] + ' ' + verdict(spec) + '\n').encode())
    os._exit(0)
main()
)py";

}  // namespace

std::string candidate_driver() { return std::string(kCodec) + kCandidate; }
std::string judge_driver() { return std::string(kCodec) + kJudge; }

}  // namespace cbench
