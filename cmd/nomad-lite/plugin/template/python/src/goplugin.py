"""Serves a plugin by the protocol of HashiCorp's go-plugin, to hosts such as nomad-lite and Nomad.

This file is the same for task drivers, hooks and device plugins: the start of the process, its log,
the service that all plugins have, and the config blocks of the plugin and of its tasks.
"""

import datetime
import json
import logging
import os
import signal
import struct
import sys
import tempfile
import threading
from concurrent import futures

import grpc
from hclspec.specpb import hcl_spec_pb2
from plugins.proto.basepb import base_pb2, base_pb2_grpc

# COOKIE is the variable by which a program detects that a host has started it.
COOKIE = ("NOMAD_PLUGIN_MAGIC_COOKIE", "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255")

# The name, the hosts and the API version of each kind of plugin.
KINDS = {
    base_pb2.DRIVER: ("task driver", "nomad-lite or Nomad", "v0.1.0"),
    base_pb2.DEVICE: ("device", "nomad-lite or Nomad", "v0.1.0"),
    base_pb2.HOOK: ("hook", "nomad-lite", "v1"),
}


def attr(name, kind):
    """An argument of a config block. kind is a type of HCL, such as string, number or list(string)."""
    return hcl_spec_pb2.Spec(Attr=hcl_spec_pb2.Attr(name=name, type=kind))


def default(spec, literal):
    """An argument with a default, which is written as in HCL."""
    return hcl_spec_pb2.Spec(default=hcl_spec_pb2.Default(primary=spec, default=hcl_spec_pb2.Spec(literal=hcl_spec_pb2.Literal(value=literal))))


def block(**arguments):
    """The schema of a config block."""
    return hcl_spec_pb2.Spec(object=hcl_spec_pb2.Object(attributes=arguments))


def serve(kind, name, version, add_service, config_schema=block(), configure=lambda config: None):
    """Serves a plugin until its host stops it, and exits the process.

    kind is a key of KINDS. add_service adds the service of the kind to a grpc.Server. A host calls
    configure with the values of the config block of the plugin, more than once and also in a
    process that only checks the configuration; configure raises ValueError to reject them.
    """
    what, hosts, api_version = KINDS[kind]
    if os.environ.get(COOKIE[0]) != COOKIE[1]:
        if sys.argv[1:] in (["--version"], ["-version"]):
            print(name, version)
            sys.exit()
        sys.exit(f'{name}: this is the {what} plugin "{name}", which a host such as {hosts} starts: try "nomad-lite plugin test {sys.argv[0]}"')
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a child process would inherit SIG_IGN
    log = logging.StreamHandler()
    log.setFormatter(HostFormatter())
    logging.basicConfig(level=logging.DEBUG, handlers=[log], force=True)  # hosts filter by level
    info = base_pb2.PluginInfoResponse(type=kind, plugin_api_versions=[api_version], plugin_version=version, name=name)
    with tempfile.TemporaryDirectory(prefix="plugin") as directory:
        # A call that waits for something, and each stream, occupies a thread.
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=4096), options=[("grpc.max_receive_message_length", -1)])
        base_pb2_grpc.add_BasePluginServicer_to_server(Base(info, config_schema, configure), server)
        add_service(server)
        server.add_generic_rpc_handlers(go_plugin_services(stopped.set))
        socket = os.path.join(directory, "s")  # of at most 107 bytes
        server.add_insecure_port("unix:" + socket)
        server.start()
        # The versions of go-plugin's protocol and of Nomad's plugins, and the address.
        print(f"1|2|unix|{socket}|grpc", flush=True)
        sys.stdout = sys.stderr  # hosts log only standard error
        stopped.wait()
        server.stop(grace=0.5).wait()
    os._exit(0)  # without the join of threads that wait for something


class HostFormatter(logging.Formatter):
    """Formats log records as hosts read them, which is the JSON of HashiCorp's hclog."""

    LEVELS = {"WARNING": "warn", "CRITICAL": "error"}

    def format(self, record):
        line = {
            "@level": self.LEVELS.get(record.levelname, record.levelname.lower()),
            "@message": record.getMessage(),
            "@module": record.name,
            "@timestamp": datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc).isoformat(timespec="microseconds"),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Base(base_pb2_grpc.BasePluginServicer):
    """The service that all plugins have."""

    def __init__(self, info, config_schema, configure):
        self.info = info
        self.config_schema = config_schema
        self.configure = configure

    def PluginInfo(self, request, context):
        return self.info

    def ConfigSchema(self, request, context):
        return base_pb2.ConfigSchemaResponse(spec=self.config_schema)

    def SetConfig(self, request, context):
        try:
            if request.msgpack_config:
                self.configure(decode_config(request.msgpack_config))
        except ValueError as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return base_pb2.SetConfigResponse()


def go_plugin_services(stop):
    """The services of go-plugin that a host needs, with encoded messages: hosts do without GRPCBroker and GRPCStdio."""
    shutdown = grpc.unary_unary_rpc_method_handler(lambda request, context: stop() or b"")
    check = grpc.unary_unary_rpc_method_handler(lambda request, context: b"\x08\x01")  # HealthCheckResponse{SERVING}
    return (
        grpc.method_handlers_generic_handler("plugin.GRPCController", {"Shutdown": shutdown}),
        grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check}),
    )


def closed(context):
    """An event that is set when the host closes a stream. A host opens a stream that ends again at once."""
    event = threading.Event()
    if not context.add_callback(event.set):
        event.set()
    return event


def decode_config(data):
    """Decodes a config block, which has strings, numbers, bools, lists and maps as msgpack. Raises ValueError."""
    try:
        value, rest = decode_value(data)
    except (IndexError, struct.error, TypeError, RecursionError) as error:
        raise ValueError(f"the config block is not msgpack: {error}") from error
    if rest or not isinstance(value, dict):
        raise ValueError("the config block is not one map in msgpack")
    return value


NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
LENGTHS = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}


def decode_value(data):
    """Decodes the first value, and returns it with the other data."""
    first, data = data[0], data[1:]

    def number(form):
        size = struct.calcsize(form)
        return struct.unpack(form, data[:size])[0], data[size:]

    if first <= 0x7F:
        return first, data
    if first >= 0xE0:
        return first - 0x100, data
    if first in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[first], data
    if first in NUMBERS:
        return number(NUMBERS[first])
    if first in LENGTHS:
        length, data = number(LENGTHS[first])
    elif first <= 0xBF:
        length = first & (0x1F if first >= 0xA0 else 0x0F)
    else:
        raise ValueError(f"a config block has no values of type {first:#x}")
    if first <= 0x8F or first in (0xDE, 0xDF):
        result = {}
        for _ in range(length):
            key, data = decode_value(data)
            result[key], data = decode_value(data)
        return result, data
    if first <= 0x9F or first in (0xDC, 0xDD):
        items = []
        for _ in range(length):
            item, data = decode_value(data)
            items.append(item)
        return items, data
    text, data = data[:length], data[length:]
    if len(text) < length:
        raise ValueError("the config block is cut off")
    return (bytes(text) if first in (0xC4, 0xC5, 0xC6) else text.decode()), data
