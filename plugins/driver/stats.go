package driver

import (
	"fmt"
	"maps"
	"slices"
)

// The index of each name is the value of the protocol's enum for the field. The stats API shows the names.
var (
	cpuFieldNames    = []string{"System Mode", "User Mode", "Total Ticks", "Throttled Periods", "Throttled Time", "Percent"}
	memoryFieldNames = []string{"RSS", "Cache", "Max Usage", "Kernel Usage", "Kernel Max Usage", "Usage", "Swap"}
)

// MeasurableCPUFields returns the names that CPUUsage.Measured can have, in the order of the protocol's
// enum. The caller must not change the slice. For hosts only.
func MeasurableCPUFields() []string { return cpuFieldNames }

// MeasurableMemoryFields returns the names that MemoryUsage.Measured can have, in the order of the
// protocol's enum. The caller must not change the slice. For hosts only.
func MeasurableMemoryFields() []string { return memoryFieldNames }

// Validate returns an error that names the first unknown field name in Measured, which the
// protocol cannot encode.
func (s *TaskStats) Validate() error {
	if s == nil {
		return nil
	}
	if err := s.Total.validate("Total"); err != nil {
		return err
	}
	for _, pid := range slices.Sorted(maps.Keys(s.ByPID)) {
		if err := s.ByPID[pid].validate(fmt.Sprintf("ByPID[%q]", pid)); err != nil {
			return err
		}
	}
	return nil
}

func (u Usage) validate(fieldPath string) error {
	for _, part := range []struct {
		name            string
		measured, known []string
	}{{"CPU", u.CPU.Measured, cpuFieldNames}, {"Memory", u.Memory.Measured, memoryFieldNames}} {
		for _, field := range part.measured {
			if !slices.Contains(part.known, field) {
				return fmt.Errorf("task stats: %s.%s.Measured: no field is named %q: the fields are %q", fieldPath, part.name, field, part.known)
			}
		}
	}
	return nil
}
