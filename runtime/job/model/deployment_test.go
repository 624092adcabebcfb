package model

import (
	"testing"

	"github.com/hashicorp/nomad/api"
)

func TestDeploymentPriority(t *testing.T) {
	job := &api.Job{Priority: new(70)}
	for _, test := range []struct {
		name  string
		job   *api.Job
		evals []*api.Evaluation
		want  int
	}{
		{"that of the evaluation which has made it", job, []*api.Evaluation{
			{DeploymentID: "d", Priority: 80, CreateIndex: 7},
			{DeploymentID: "d", Priority: 90, CreateIndex: 5},
			{DeploymentID: "other", Priority: 1, CreateIndex: 3},
		}, 90},
		{"when that is gone, that of the job", job, []*api.Evaluation{{DeploymentID: "other", Priority: 1}}, 70},
		{"when that is gone too, none", nil, nil, 0},
	} {
		if got := DeploymentEvalPriority(&api.Deployment{ID: "d"}, test.job, test.evals); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}
