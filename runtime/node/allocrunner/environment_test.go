package allocrunner

import (
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
)

func TestEnvironmentOfTaskAndAllocation(t *testing.T) {
	alloc := newAllocation(parseJob(t, job("service", endlessTaskText)))
	e := &envBuilders{alloc: func() *api.Allocation { return alloc }, network: new(allocNetwork), builderOfTask: make(map[string]*taskenv.Builder)}
	e.addTaskBuilder("web", map[string]string{"PATH": "/bin"})
	const templateText = "${NOMAD_TASK_NAME} of ${NOMAD_ALLOC_NAME}"
	wantEqual(t, "task", e.envOfTaskOrAlloc("web").Replace(templateText), "web of "+alloc.Name)
	wantEqual(t, "variable of the host", e.envOfTaskOrAlloc("web").Vars()["PATH"], "/bin")
	wantEqual(t, "allocation", e.allocEnv().Vars()["NOMAD_ALLOC_NAME"], alloc.Name)
	wantEqual(t, "no such task", e.envOfTaskOrAlloc("other").Replace(templateText), e.allocEnv().Replace(templateText))

	next := *alloc
	next.Name = "renamed"
	e.setAllocOfTaskEnv(&next, "web")
	wantEqual(t, "next version", e.envOfTaskOrAlloc("web").Replace(templateText), "web of renamed")
}
