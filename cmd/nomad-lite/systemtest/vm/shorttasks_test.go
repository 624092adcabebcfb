package vm

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
)

const (
	vmStepShortTasks      = "short tasks"
	vmShortTaskIterations = 20 // iterations of TestShortTasks in each virtual machine
)

// shortTaskCounts matches the counts of allocations in the output of TestShortTasks, by driver.
var shortTaskCounts = regexp.MustCompile(`allocations: map\[([^]]+)\]`)

// TestShortTasksInVM runs TestShortTasks of package faults in virtual machines that have only cgroups version 2. Each
// iteration boots one.
//
//	make test-short-tasks-vm
func TestShortTasksInVM(t *testing.T) {
	if endurance.CurrentMode() == endurance.Sample {
		t.Skip("is a long test only: TestVM has a sample of it")
	}
	t.Setenv(vmStepsEnvVar, strings.ReplaceAll(vmStepShortTasks, " ", "_"))
	run := endurance.Start(t, endurance.Config{Unit: "allocations", Load: "an emulated machine with cgroups v2"})
	m := vm{kernel: findVMKernel(t), image: filepath.Join(t.TempDir(), "initramfs")}
	writeVMImage(t, m, buildVMTests(t, packagesOfSteps(chosenVMSteps(vmStepShortTasks, false)), t.TempDir()))
	run.Each(func(seed uint64) error {
		reports, rest := m.boot(t, vmModeAllSteps, nil, fmt.Sprintf("%s=%d", vmSeedEnvVar, seed*vmShortTaskIterations))
		report, ok := reports[vmStepShortTasks]
		counts := shortTaskCounts.FindStringSubmatch(report.output)
		if !ok || !strings.HasPrefix(report.result, "ok") || counts == nil {
			return fmt.Errorf("%s\n%s\n%s", report.result, report.output, rest)
		}
		t.Log(counts[0])
		for count := range strings.FieldsSeq(counts[1]) {
			driver, number, _ := strings.Cut(count, ":")
			n, err := strconv.Atoi(number)
			if err != nil {
				return err
			}
			run.AddKind(driver, n)
		}
		return nil
	})
}
