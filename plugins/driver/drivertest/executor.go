package drivertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"syscall"
)

const executorArg = "executor"

// portRange is the range of ports that a host reserves for the executors of drivers, both ends
// included.
type portRange struct{ First, Last uint32 }

// executorAddress is the address of an executor. A driver stores it, so that a later plugin process can connect to the
// executor.
type executorAddress struct {
	Address string
	PID     int
}

// executorRequest is the message that a driver writes to the standard input of an executor.
type executorRequest struct {
	Ports   portRange
	Command taskCommand
}

// startExecutor starts an executor process, which starts the task.
func startExecutor(ports portRange, command taskCommand) (executorAddress, error) {
	var none executorAddress
	program, err := os.Executable()
	if err != nil {
		return none, err
	}
	request, err := json.Marshal(executorRequest{ports, command})
	if err != nil {
		return none, err
	}
	cmd := exec.Command(program, executorArg)
	cmd.Args[0] = os.Args[0]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdin = bytes.NewReader(request)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return none, err
	}
	if err := cmd.Start(); err != nil {
		return none, err
	}
	var answer struct {
		Address, Error string
	}
	err = json.NewDecoder(stdout).Decode(&answer)
	go func() { _ = cmd.Wait() }() // reaps the executor; the driver detects the exit by the end of the connection
	switch {
	case err != nil:
		return none, fmt.Errorf("executor: %w", err)
	case answer.Error != "":
		return none, fmt.Errorf("executor: %s", answer.Error)
	}
	return executorAddress{answer.Address, cmd.Process.Pid}, nil
}

func (a executorAddress) dial() (taskProcess, error) {
	client, err := rpc.Dial("tcp", a.Address)
	if err != nil {
		return nil, err
	}
	return executorTaskProcess{client}, nil
}

// executorTaskProcess is the process of a task that an executor has started.
type executorTaskProcess struct{ client *rpc.Client }

func (p executorTaskProcess) wait() ProcessResult {
	var result ProcessResult
	if err := p.client.Call("Executor.Wait", false, &result); err != nil {
		return ProcessResult{Unknown: true}
	}
	return result
}

func (p executorTaskProcess) signal(s syscall.Signal) error {
	return p.client.Call("Executor.Signal", s, new(bool))
}

func (p executorTaskProcess) releaseExecutor() {
	_ = p.client.Call("Executor.Exit", false, new(bool)) // the error is ignored: the executor exits before it responds
	_ = p.client.Close()
}

// Executor is the RPC service of an executor process.
type Executor struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when result is set
	result ProcessResult
}

// Wait blocks until the task has ended.
func (e *Executor) Wait(_ bool, result *ProcessResult) error {
	<-e.exited
	*result = e.result
	return nil
}

// Signal sends a signal to the task, if it still runs.
func (e *Executor) Signal(s syscall.Signal, _ *bool) error {
	select {
	case <-e.exited:
		return nil
	default:
		return e.cmd.Process.Signal(s)
	}
}

// Exit terminates the executor process.
func (*Executor) Exit(bool, *bool) error {
	os.Exit(0)
	return nil
}

// runExecutor is the main function of an executor process: it starts the task, and serves Executor until Exit is called.
func runExecutor() error {
	var request executorRequest
	if err := json.NewDecoder(os.Stdin).Decode(&request); err != nil {
		return err
	}
	e, listener, err := listenAndStartTask(request)
	answer := map[string]string{}
	if err != nil {
		answer["Error"] = err.Error()
	} else {
		answer["Address"] = listener.Addr().String()
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil || listener == nil {
		return err
	}
	os.Stdout.Close()
	go func() {
		_ = e.cmd.Wait() // ProcessState has the result, also after an error
		e.result = processResultOf(e.cmd.ProcessState)
		close(e.exited)
	}()
	server := rpc.NewServer()
	if err := server.Register(e); err != nil {
		return err
	}
	server.Accept(listener)
	return nil
}

func listenAndStartTask(request executorRequest) (*Executor, net.Listener, error) {
	listener, err := listenInRange(request.Ports)
	if err != nil {
		return nil, nil, err
	}
	cmd, err := request.Command.start()
	if err != nil {
		listener.Close()
		return nil, nil, err
	}
	return &Executor{cmd: cmd, exited: make(chan struct{})}, listener, nil
}

func listenInRange(ports portRange) (listener net.Listener, err error) {
	err = fmt.Errorf("the host has sent the port range %d-%d", ports.First, ports.Last)
	for port := ports.First; port > 0 && port <= ports.Last; port++ {
		if listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return listener, nil
		}
	}
	return nil, err
}
