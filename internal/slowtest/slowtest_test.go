package slowtest

import (
	"fmt"
	"testing"
)

func TestEachTestIsInOnePart(t *testing.T) {
	const parts = 3
	sizes := make([]int, parts)
	for i := range 300 {
		name := fmt.Sprintf("TestNumber%d/sub", i)
		if !isInPart("1", name) || isInPart("", name) {
			t.Errorf("%s: the value 1 enables all tests, and no value none", name)
		}
		in := 0
		for part := range parts {
			if isInPart(fmt.Sprintf("%d/%d", part+1, parts), name) {
				in++
				sizes[part]++
			}
		}
		if in != 1 {
			t.Errorf("%s is in %d parts, want 1", name, in)
		}
	}
	for part, size := range sizes {
		if size < 60 {
			t.Errorf("part %d has %d of 300 tests, want about 100", part+1, size)
		}
	}
}

func TestValueThatIsNoPartPanics(t *testing.T) {
	for _, value := range []string{"yes", "0/3", "4/3", "2", "2/"} {
		t.Run(value, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic: the slow tests would not run, and nobody would know")
				}
			}()
			isInPart(value, "Test")
		})
	}
}
