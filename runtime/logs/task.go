package logs

// Limits bound the files of one stream of a task.
type Limits struct {
	MaxFiles    int
	MaxFileSize int64 // bytes
}

// Task says whose output is collected, and where it goes.
type Task struct {
	AllocID string
	Name    string
	Dir     string // <alloc>/alloc/logs
	Stdout  Limits
	Stderr  Limits
}
