package driver_test

import (
	"fmt"
	"os"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// An error wrapped by Recoverable is retried according to the task's restart policy, also
// if the error comes from a plugin process.
func ExampleRecoverable() {
	err := driver.Recoverable(fmt.Errorf("pull image: %w", os.ErrDeadlineExceeded))
	fmt.Println(err, driver.IsRecoverable(err))
	// Output: pull image: i/o timeout true
}
