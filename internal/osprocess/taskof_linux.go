package osprocess

import (
	"os"
	"path"
	"strconv"
	"strings"
)

// TaskOf returns the task to which a process belongs, for a message: by its cgroup, or else by the variables in its environment,
// which the process chooses itself. It returns false if the process belongs to no task, or to another user that hides both.
func TaskOf(pid int) (TaskEnvID, bool) {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup") // the environment can still name the task
	for line := range strings.Lines(string(text)) {
		for dir := strings.TrimSpace(line); len(dir) > 1; dir = path.Dir(dir) {
			if id, ok := taskOfCgroupName(path.Base(dir)); ok {
				return id, true
			}
		}
	}
	env, err := ReadEnv(pid)
	if err != nil {
		return TaskEnvID{}, false
	}
	return parseTaskEnvID(env)
}

// taskOfCgroupName parses the name ALLOC_ID.TASK.scope, or ALLOC_ID.TASK, of the cgroup of a task.
func taskOfCgroupName(name string) (TaskEnvID, bool) {
	const uuidLength = 36
	if len(name) <= uuidLength || name[uuidLength] != '.' || strings.Count(name[:uuidLength], "-") != 4 {
		return TaskEnvID{}, false
	}
	return TaskEnvID{AllocID: name[:uuidLength], Task: strings.TrimSuffix(name[uuidLength+1:], ".scope")}, true
}
