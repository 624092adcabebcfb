// Command wrong does not compile.
package main

import (
	"context"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

func main() {
	sdk.ServeDriver(&startWithoutContext{})        // ERROR "startWithoutContext.* does not match sdk.Driver\[T\]"
	sdk.ServeDriver[*nap](&startWithoutContext{})  // ERROR "wrong type for method Start"
	sdk.ServeDriver(&startWithoutError{})          // ERROR "startWithoutError.* does not match sdk.Driver\[T\]"
	sdk.ServeDriver(&startsHalfTask{})             // ERROR "missing method Kill"
	sdk.ServeDriver(&withoutInfo{})                // ERROR "withoutInfo.* does not match sdk.Driver\[T\]"
	sdk.ServeDriver[*nap](&withoutInfo{})          // ERROR "missing method Info"
	sdk.ServeDriver(&greeter{})                    // ERROR "greeter.* does not match sdk.Driver\[T\]"
	sdk.ServeHook(&sleeper{})                      // ERROR "wrong type for method Info"
	sdk.ServeHook(&unnamedHook{})                  // ERROR "missing method Info"
	_ = sdk.HookInfo{Name: "x", TaskSchema: nil}   // ERROR "unknown field TaskSchema"
	_ = sdk.DriverInfo{Name: "x", AllAllocs: true} // ERROR "unknown field AllAllocs"
	_ = sdk.DriverInfo{Name: "x", Timeouts: nil}   // ERROR "unknown field Timeouts"
	sdk.ServeDriver(&sleeper{})                    // a driver without a mistake
	sdk.ServeHook(&greeter{})                      // a hook without a mistake
}

type nap struct{}

func (*nap) Wait(context.Context) (driver.ExitResult, error) { return driver.ExitResult{}, nil }
func (*nap) Kill(context.Context) error                      { return nil }

type sleeper struct{}

func (*sleeper) Info() sdk.DriverInfo                                   { return sdk.DriverInfo{} }
func (*sleeper) Start(context.Context, *sdk.StartRequest) (*nap, error) { return nil, nil }

type startWithoutContext struct{ sleeper }

func (*startWithoutContext) Start(*sdk.StartRequest) (*nap, error) { return nil, nil }

type startWithoutError struct{ sleeper }

func (*startWithoutError) Start(context.Context, *sdk.StartRequest) *nap { return nil }

type halfTask struct{}

func (*halfTask) Wait(context.Context) (driver.ExitResult, error) { return driver.ExitResult{}, nil }

type startsHalfTask struct{ sleeper }

func (*startsHalfTask) Start(context.Context, *sdk.StartRequest) (*halfTask, error) { return nil, nil }

type withoutInfo struct{}

func (*withoutInfo) Start(context.Context, *sdk.StartRequest) (*nap, error) { return nil, nil }

type greeter struct{}

func (*greeter) Info() sdk.HookInfo { return sdk.HookInfo{} }

type unnamedHook struct{}
