package systemtest

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/creack/pty"
	"github.com/rogpeppe/go-internal/testscript"
)

// ptyTerminal is a pseudo terminal on which a script runs one program at a time. The output of the program is written
// to the file "screen".
type ptyTerminal struct {
	ptyMaster  *os.File
	cmd        *exec.Cmd
	outputDone chan struct{} // closed when the file "screen" has the whole output
}

func findScriptTerminal(ts *testscript.TestScript) *ptyTerminal {
	return ts.Value(ptyTerminal{}).(*ptyTerminal)
}

// startProgramOnTerminal is the script command "terminal PROGRAM [ARGUMENT...]". It starts a program on a terminal of
// 80 columns and 24 rows.
func startProgramOnTerminal(ts *testscript.TestScript, neg bool, args []string) {
	t := findScriptTerminal(ts)
	if neg || len(args) == 0 || t.cmd != nil {
		ts.Fatalf("usage: terminal program [argument...], one at a time")
	}
	program, err := exec.LookPath(args[0])
	ts.Check(err)
	screen, err := os.Create(ts.MkAbs("screen"))
	ts.Check(err)
	t.cmd = exec.Command(program, args[1:]...)
	t.cmd.Dir = ts.MkAbs(".")
	t.cmd.Env = append(os.Environ(), WorkDirEnvVar+"="+ts.Getenv("WORK"), "NOMAD_ADDR="+ts.Getenv("NOMAD_ADDR"), "HOME="+ts.Getenv("HOME"))
	t.ptyMaster, err = pty.StartWithSize(t.cmd, &pty.Winsize{Rows: 24, Cols: 80})
	ts.Check(err)
	t.outputDone = make(chan struct{})
	go func() {
		defer close(t.outputDone)
		defer screen.Close()
		_, _ = io.Copy(screen, t.ptyMaster) // the read of a terminal fails when the program has exited
	}()
	cmd, master, shown := t.cmd, t.ptyMaster, t.outputDone
	ts.Defer(func() { // if the script fails before it waits for the program, the program still runs
		_ = cmd.Process.Kill()
		master.Close()
		<-shown
	})
}

// typeIntoTerminal is the script command "type TEXT". It sends a text to the terminal, in which escape sequences such
// as \r stand for keys.
func typeIntoTerminal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: type text")
	}
	text, err := strconv.Unquote("`" + args[0] + "`")
	ts.Check(err)
	keys, err := strconv.Unquote(`"` + escapeDoubleQuotes(text) + `"`)
	ts.Check(err)
	_, err = findScriptTerminal(ts).ptyMaster.WriteString(keys)
	ts.Check(err)
}

func escapeDoubleQuotes(text string) string {
	quoted := ""
	for _, r := range text {
		if r == '"' {
			quoted += `\`
		}
		quoted += string(r)
	}
	return quoted
}

// resizeTerminal is the script command "resize ROWS COLUMNS". It changes the size of the terminal.
func resizeTerminal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: resize rows columns")
	}
	rows, err := strconv.ParseUint(args[0], 10, 16)
	ts.Check(err)
	columns, err := strconv.ParseUint(args[1], 10, 16)
	ts.Check(err)
	ts.Check(pty.Setsize(findScriptTerminal(ts).ptyMaster, &pty.Winsize{Rows: uint16(rows), Cols: uint16(columns)}))
}

// assertTerminalExitCode is the script command "hangup CODE". It waits until the program on the terminal exits, and
// fails unless the exit code is CODE.
func assertTerminalExitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: hangup code")
	}
	t := findScriptTerminal(ts)
	defer time.AfterFunc(WaitTimeout, func() { _ = t.cmd.Process.Kill() }).Stop() // an error means that the program has exited
	err := t.cmd.Wait()
	<-t.outputDone
	t.ptyMaster.Close()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		ts.Fatalf("hangup: %v", err)
	}
	if got := strconv.Itoa(t.cmd.ProcessState.ExitCode()); got != args[0] {
		ts.Fatalf("hangup: exit code %s, want %s; the screen:\n%s", got, args[0], ts.ReadFile("screen"))
	}
	t.cmd = nil
}
