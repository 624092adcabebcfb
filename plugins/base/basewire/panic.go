package basewire

import (
	"fmt"
	"runtime/debug"

	"github.com/hashicorp/go-hclog"
)

// PanicError is the error that a caller gets when a method that the plugin's author wrote has panicked. It does not wrap
// the value of the panic, even if that is an error: the error has no meaning for the caller.
type PanicError struct {
	Method string // method with its receiver type, such as "*main.driver.StartStatus"
	Value  any    // argument of panic
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("method %s panicked: %v (the log of the plugin has the stack)", e.Method, e.Value)
}

// PanicMessage is the message of the log line with which RecoverAndLogPanic logs a panic. The
// line has the keys method, panic and stack.
const PanicMessage = "method panicked"

// RecoverAndLogPanic is deferred by the caller of a method that the plugin's author wrote. It stops a
// panic of the method: the stack goes to hclog.Default(), which is the plugin's log, and
// *err becomes a PanicError. It must be deferred directly, because recover works only in a
// deferred function. A panic in a goroutine that the method has started cannot be recovered
// here, and terminates the process.
func RecoverAndLogPanic(receiver any, method string, err *error) {
	value := recover()
	if value == nil {
		return
	}
	panicked := &PanicError{Method: fmt.Sprintf("%T.%s", receiver, method), Value: value}
	hclog.Default().Error(PanicMessage, "method", panicked.Method, "panic", fmt.Sprint(value), "stack", string(debug.Stack()))
	*err = panicked
}
