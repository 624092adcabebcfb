package tables

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

// PrintDeployments adds a table of deployments, the newest first.
func PrintDeployments(p *output.Page, all []*api.Deployment, verbose bool) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b *api.Deployment) int { return cmp.Compare(b.CreateIndex, a.CreateIndex) })
	t := output.NewTable("ID", "Job ID", "Job Version", "Status", "Description")
	for _, d := range all {
		t.AddRow(output.ShortIDUnlessVerbose(d.ID, verbose), d.JobID, d.JobVersion, output.StatusCell(d.Status), d.StatusDescription)
	}
	p.AddTableOrMessage(t, "No deployments found")
}

// PrintDeployment adds a deployment and the progress of its groups, why it has failed, and what the user can do. Both texts can be
// empty.
func PrintDeployment(p *output.Page, d *api.Deployment, reason, remedy string, verbose bool) {
	all := output.Pairs{
		{"ID", output.ShortIDUnlessVerbose(d.ID, verbose)},
		{"Job ID", d.JobID},
		{"Job Version", d.JobVersion},
		{"Status", output.StatusCell(d.Status)},
		{"Description", d.StatusDescription},
	}
	if reason != "" {
		all = append(all, [2]any{"Reason", reason})
	}
	if remedy != "" {
		all = append(all, [2]any{"Remedy", remedy})
	}
	p.AddPairs(all)
	if len(d.TaskGroups) > 0 {
		p.AddSectionTitle("Deployed")
		PrintDeployedGroups(p, d.TaskGroups)
	}
}

// PrintDeployedGroups adds a table of the groups of a deployment. Columns about auto_revert and canaries are left out
// if no group uses them.
func PrintDeployedGroups(p *output.Page, groups map[string]*api.DeploymentState) {
	var anyAutoRevert, anyCanaries bool
	for _, g := range groups {
		anyAutoRevert = anyAutoRevert || g != nil && g.AutoRevert
		anyCanaries = anyCanaries || g != nil && g.DesiredCanaries > 0
	}
	columns := []struct {
		title string
		shown bool
		cell  func(*api.DeploymentState) any
	}{
		{"Auto Revert", anyAutoRevert, func(g *api.DeploymentState) any { return g.AutoRevert }},
		{"Promoted", anyCanaries, promotedCell},
		{"Desired", true, func(g *api.DeploymentState) any { return g.DesiredTotal }},
		{"Canaries", anyCanaries, func(g *api.DeploymentState) any { return g.DesiredCanaries }},
		{"Placed", true, func(g *api.DeploymentState) any { return g.PlacedAllocs }},
		{"Healthy", true, func(g *api.DeploymentState) any { return g.HealthyAllocs }},
		{"Unhealthy", true, func(g *api.DeploymentState) any { return g.UnhealthyAllocs }},
		{"Progress Deadline", true, progressDeadlineCell},
	}
	t := output.NewTable("Task Group")
	for _, c := range columns {
		if c.shown {
			t.Titles = append(t.Titles, c.title)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		row := []any{name}
		for _, c := range columns {
			if c.shown && groups[name] != nil {
				row = append(row, c.cell(groups[name]))
			}
		}
		t.AddRow(row...)
	}
	p.AddTable(t)
}

func promotedCell(g *api.DeploymentState) any {
	if g.DesiredCanaries == 0 {
		return "N/A"
	}
	return g.Promoted
}

func progressDeadlineCell(g *api.DeploymentState) any {
	if g.RequireProgressBy.IsZero() {
		return "N/A"
	}
	return g.RequireProgressBy.Local().Format(time.RFC3339)
}
