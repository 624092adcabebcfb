package allocdir

import (
	"path/filepath"
	"testing"
)

func BenchmarkTask(b *testing.B) {
	d, err := New(filepath.Join(b.TempDir(), "alloc"), allocID)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := d.Build(); err != nil {
			b.Fatal(err)
		}
		if _, err := d.BuildTaskDir("web", TaskDirOptions{}); err != nil {
			b.Fatal(err)
		}
		if err := d.DropSecretsAndUnmount("web"); err != nil {
			b.Fatal(err)
		}
		if err := d.Destroy(); err != nil {
			b.Fatal(err)
		}
	}
}
