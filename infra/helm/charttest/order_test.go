package charttest

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"testing"

	"helm.sh/helm/v3/pkg/release"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/yaml"
)

// deployment is how a Deployment is replaced.
type deployment struct {
	Service     string `json:"service"`
	Replicas    int    `json:"replicas"`
	Surge       int    `json:"surge"`
	Unavailable int    `json:"unavailable"`
}

// An upgrade migrates first, and replaces no process before another one is ready. The test of an upgrade on the real servers keeps to
// this order, which is written for it into the file that the variable UPGRADE_ORDER names.
func TestUpgradeMigratesFirstAndLeavesNoServiceWithoutAProcess(t *testing.T) {
	var order struct {
		Before      [][]string   `json:"before"`
		Deployments []deployment `json:"deployments"`
	}
	made, err := render(t, region())
	if err != nil {
		t.Fatal(err)
	}
	hooks := slices.DeleteFunc(slices.Clone(made.Hooks), func(h *release.Hook) bool {
		return h.Kind != "Job" || !slices.Contains(h.Events, release.HookPreUpgrade)
	})
	slices.SortStableFunc(hooks, func(a, b *release.Hook) int { return cmp.Compare(a.Weight, b.Weight) })
	for _, h := range hooks {
		var job batchv1.Job
		if err := yaml.Unmarshal([]byte(h.Manifest), &job); err != nil {
			t.Fatal(err)
		}
		c := job.Spec.Template.Spec.Containers[0]
		order.Before = append(order.Before, append(slices.Clone(c.Command), c.Args...))
	}
	if len(order.Before) != 1 || !slices.Equal(order.Before[0], []string{"/minutehand", "migrate"}) {
		t.Errorf("before an upgrade run %v, want the migration alone", order.Before)
	}
	for _, o := range objects(t, region()) {
		d, ok := o.(*appsv1.Deployment)
		if !ok {
			continue
		}
		rolling := d.Spec.Strategy.RollingUpdate
		one := deployment{d.Labels["app.kubernetes.io/component"], int(*d.Spec.Replicas), rolling.MaxSurge.IntValue(), rolling.MaxUnavailable.IntValue()}
		if order.Deployments = append(order.Deployments, one); one.Unavailable != 0 || one.Surge < 1 || one.Replicas < 2 {
			t.Errorf("%+v: an upgrade leaves it with fewer processes than it has", one)
		}
	}
	if len(order.Deployments) != 6 {
		t.Errorf("there are %s Deployments", strconv.Itoa(len(order.Deployments)))
	}
	if name := os.Getenv("UPGRADE_ORDER"); name != "" {
		text, err := json.Marshal(order)
		if err == nil {
			err = os.WriteFile(name, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
