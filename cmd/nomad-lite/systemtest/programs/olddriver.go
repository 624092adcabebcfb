package programs

import (
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// serveOldProtocolDriver serves a driver like those built for old versions of Nomad, written directly for the wire
// format and without code of nomad-lite. It lacks Init, Shutdown and Inspect, omits sub-messages where possible, and
// its name differs from the name of its file. A task writes its greeting and exits.
func serveOldProtocolDriver() {
	dir, err := os.MkdirTemp("", "old")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "plugin")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	d := &oldProtocolDriver{endedChanByTaskID: map[string]chan struct{}{}}
	server := grpc.NewServer(grpc.ForceServerCodec(passThroughCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		return d.answerRPC(stream)
	}))
	d.stopServer = func() { go server.Stop() }
	fmt.Printf("1|2|unix|%s|grpc|\n", socket)
	_ = server.Serve(listener)
}

// oldProtocolDriver implements version 0.1.0 of the driver protocol without any code of nomad-lite. Its constant
// responses are in recordedRPCResponses.
type oldProtocolDriver struct {
	stopServer func()

	mu                      sync.Mutex
	endedChanByTaskID       map[string]chan struct{} // task ID -> closed when the task has ended
	encodedHostDriverConfig []byte                   // field NomadConfig.driver of the last SetConfig request
}

// recordedRPCResponses maps methods to their constant responses, encoded in hex.
var recordedRPCResponses = map[string]string{
	// This response has the type driver, the API version v0.1.0, the plugin version 0.0.1 and the name gramophone.
	"BasePlugin/PluginInfo":   "0802" + "1206" + "76302e312e30" + "1a05" + "302e302e31" + "220a" + "6772616d6f70686f6e65",
	"BasePlugin/ConfigSchema": "",
	// This schema has one attribute: greeting, a string with the default "hi".
	"Driver/TaskConfigSchema": "0a32" + "0a300a2e0a086772656574696e6712224a200a141a120a086772656574696e671206737472696e67120852060a0422686922",
	"Driver/Capabilities":     "",
	"Driver/StopTask":         "",
	"Driver/RecoverTask":      "",
	"Health/Check":            "0801",
}

func (d *oldProtocolDriver) answerRPC(stream grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(stream)
	service, name := filepath.Split(full)
	method := service[strings.LastIndexByte(strings.TrimSuffix(service, "/"), '.')+1:] + name
	request := encodedProtoMessage{}
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	if answer, ok := recordedRPCResponses[method]; ok {
		bytes, err := hex.DecodeString(answer)
		if err != nil {
			return err
		}
		return stream.SendMsg((*encodedProtoMessage)(&bytes))
	}
	switch method {
	case "BasePlugin/SetConfig":
		d.mu.Lock()
		d.encodedHostDriverConfig = protoBytesField(protoBytesField(request, 2), 1)
		d.mu.Unlock()
		return stream.SendMsg(&encodedProtoMessage{})
	case "GRPCController/Shutdown":
		d.stopServer()
		return stream.SendMsg(&encodedProtoMessage{})
	case "Driver/Fingerprint": // the fingerprint is healthy, without attributes and description
		if err := stream.SendMsg(&encodedProtoMessage{0x10, 0x02}); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	case "Driver/TaskEvents":
		<-stream.Context().Done()
		return nil
	case "Driver/TaskStats": // the stats have neither a usage nor a time
		if err := stream.SendMsg(&encodedProtoMessage{0x0a, 0x00}); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	case "Driver/StartTask":
		config := protoBytesField(request, 1)
		id := string(protoBytesField(config, 1))
		linux := protoBytesField(protoBytesField(config, 6), 2)
		if err := d.simulateTask(id, string(protoBytesField(config, 11)), protoBytesField(config, 3), string(protoBytesField(linux, 9))); err != nil {
			return err // gRPC sends a plain error with the code Unknown
		}
		var handle []byte // the handle has version 1, the task config and no driver state
		handle = protowire.AppendTag(handle, 1, protowire.VarintType)
		handle = protowire.AppendVarint(handle, 1)
		handle = protowire.AppendTag(handle, 2, protowire.BytesType)
		handle = protowire.AppendBytes(handle, config)
		answer := encodedProtoMessage(protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), handle))
		return stream.SendMsg(&answer)
	case "Driver/WaitTask":
		d.mu.Lock()
		ended := d.endedChanByTaskID[string(protoBytesField(request, 1))]
		d.mu.Unlock()
		if ended == nil {
			return status.Error(codes.Unknown, "task not found for given id")
		}
		select {
		case <-ended:
			return stream.SendMsg(&encodedProtoMessage{0x0a, 0x00}) // an exit result of zeros
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	case "Driver/DestroyTask":
		d.mu.Lock()
		delete(d.endedChanByTaskID, string(protoBytesField(request, 1)))
		d.mu.Unlock()
		return stream.SendMsg(&encodedProtoMessage{})
	}
	return status.Errorf(codes.Unimplemented, "unknown method %s", full)
}

// simulateTask runs a task in a goroutine. The cgroup must exist unless cgroupPath is "". The greeting is the only
// string in msgpackConfig.
func (d *oldProtocolDriver) simulateTask(id, stdoutFIFO string, msgpackConfig []byte, cgroupPath string) error {
	if _, err := os.Stat(cgroupPath); cgroupPath != "" && err != nil {
		return err
	}
	fifo, err := os.OpenFile(stdoutFIFO, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	text := string(msgpackConfig[len("\x81\xa8greeting")+1:])
	d.mu.Lock()
	host := d.encodedHostDriverConfig
	d.mu.Unlock()
	// Like drivers made from Nomad's skeleton project, this driver panics unless the host has sent
	// its port range and its cores.
	ports := [2]uint64{protoVarintFields(host, 2)[0], protoVarintFields(host, 1)[0]}
	topology := protoBytesFields(host, 3)[0]
	cores := protoBytesFields(topology, 3)
	_ = cores[0]
	distance := protoBytesFields(protoBytesFields(topology, 2)[0], 2)[0][0]
	ended := make(chan struct{})
	d.mu.Lock()
	d.endedChanByTaskID[id] = ended
	d.mu.Unlock()
	go func() {
		time.Sleep(100 * time.Millisecond)
		fmt.Fprintln(fifo, "the record says:", text)
		fmt.Fprintf(fifo, "it turns in %q\n", cgroupPath)
		fmt.Fprintf(fifo, "ports %d, %d cores, distance %d\n", ports, len(cores), distance)
		fifo.Close()
		close(ended)
	}()
	return nil
}

// protoBytesField returns the bytes of a field in an encoded message, or nil if the field is missing.
func protoBytesField(message []byte, fieldNumber protowire.Number) []byte {
	if values := protoBytesFields(message, fieldNumber); len(values) > 0 {
		return values[0]
	}
	return nil
}

// protoBytesFields returns the values of a repeated field with the wire type bytes in an encoded message.
func protoBytesFields(message []byte, fieldNumber protowire.Number) (values [][]byte) {
	forEachValueOfProtoField(message, fieldNumber, protowire.BytesType, func(value []byte) {
		bytes, _ := protowire.ConsumeBytes(value)
		values = append(values, bytes)
	})
	return values
}

// protoVarintFields returns the values of a repeated field with the wire type varint in an encoded message.
func protoVarintFields(message []byte, fieldNumber protowire.Number) (values []uint64) {
	forEachValueOfProtoField(message, fieldNumber, protowire.VarintType, func(value []byte) {
		n, _ := protowire.ConsumeVarint(value)
		values = append(values, n)
	})
	return values
}

func forEachValueOfProtoField(message []byte, fieldNumber protowire.Number, wantType protowire.Type, visit func(value []byte)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(number, kind, message[n:])
		if size < 0 {
			return
		}
		if number == fieldNumber && kind == wantType {
			visit(message[n:])
		}
		message = message[n+size:]
	}
}

// encodedProtoMessage is an encoded protobuf message.
type encodedProtoMessage []byte

type passThroughCodec struct{}

func (passThroughCodec) Name() string { return "proto" }

func (passThroughCodec) Marshal(v any) ([]byte, error) { return *v.(*encodedProtoMessage), nil }

func (passThroughCodec) Unmarshal(data []byte, v any) error {
	*v.(*encodedProtoMessage) = append(encodedProtoMessage{}, data...)
	return nil
}
