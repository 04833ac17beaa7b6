// Package charttest renders the chart as Helm does, and holds what comes out against the types of Kubernetes, the pod security standard
// "restricted", and the connections that the services open.
package charttest

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load("../minutehand")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// region is the least that a region must say.
func region() map[string]any {
	return parse(`
servers:
  cassandra: {hosts: [cassandra:9042]}
  kafka: {brokers: [kafka-0:9093, kafka-1:9093]}
  redis: {addresses: [redis:6379]}
  zookeeper: {servers: [zk:2181]}
  s3: {bucket: audit, endpoint: 'http://s3:7070'}
api: {tokenSecret: {name: api-token, key: token}}
`)
}

// secured is a region with everything turned on.
func secured() map[string]any {
	v := region()
	merge(v, parse(`
servers:
  cassandra: {username: m, passwordSecret: {name: c, key: password}, tls: {enabled: true, secretName: ct, clientCertificate: true, serverName: cassandra}}
  kafka: {username: m, passwordSecret: {name: k, key: password}, tls: {enabled: true, secretName: kt, clientCertificate: true}}
  redis: {cluster: true, username: m, passwordSecret: {name: r, key: password}, tls: {enabled: true, secretName: rt, clientCertificate: true}}
  zookeeper: {tls: {enabled: true, secretName: zt, clientCertificate: true}}
  s3: {endpoint: 'https://s3:7070', accessKey: a, passwordSecret: {name: s, key: secret-key}, tls: {enabled: true, secretName: st}}
api: {tls: {secretName: at, clientAuthority: true}, jwt: {keys: 'https://issuer/keys', issuer: i, audience: a}}
services: {executor: {autoscaling: {backlogMetric: minutehand_lag}}}
networkPolicy: {serverCIDRs: [10.1.0.0/16]}
serviceMonitor: {enabled: true}
settings: {MINUTEHAND_GOMEMLIMIT: 1}
`))
	return v
}

func oneProcess() map[string]any { return parse("profile: one-process\napi: {insecure: true}\n") }

func parse(text string) map[string]any {
	v, err := chartutil.ReadValues([]byte(text))
	if err != nil {
		panic(err)
	}
	return v
}

func merge(into, from map[string]any) {
	for k, v := range from {
		inner, ok := v.(map[string]any)
		if at, is := into[k].(map[string]any); ok && is {
			merge(at, inner)
			continue
		}
		into[k] = v
	}
}

// render installs the chart without a cluster.
func render(t *testing.T, values map[string]any) (*release.Release, error) {
	t.Helper()
	i := action.NewInstall(&action.Configuration{Log: func(string, ...any) {}})
	i.DryRun, i.ClientOnly, i.ReleaseName, i.Namespace = true, true, "r1", "jobs"
	i.KubeVersion = &chartutil.KubeVersion{Version: "v1.36.1", Major: "1", Minor: "36"}
	return i.Run(load(t), values)
}

// objects decodes what a release is made of, hooks included, and refuses fields that Kubernetes does not know.
func objects(t *testing.T, values map[string]any) []runtime.Object {
	t.Helper()
	r, err := render(t, values)
	if err != nil {
		t.Fatal(err)
	}
	text := r.Manifest
	for _, h := range r.Hooks {
		text += "\n---\n" + h.Manifest
	}
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var list []runtime.Object
	reader := yaml.NewYAMLReader(bufio(text))
	for {
		doc, err := reader.Read()
		if err != nil {
			return list
		}
		if !bytes.Contains(doc, []byte("kind:")) || bytes.Contains(doc, []byte("monitoring.coreos.com")) {
			continue
		}
		o, _, err := strict.Decode(doc, nil, nil)
		if err != nil {
			t.Errorf("%v in\n%s", err, doc)
			continue
		}
		list = append(list, o)
	}
}

// pods returns the pod templates by component.
func pods(list []runtime.Object) map[string]*corev1.PodTemplateSpec {
	of := map[string]*corev1.PodTemplateSpec{}
	for _, o := range list {
		switch o := o.(type) {
		case *appsv1.Deployment:
			of[o.Labels["app.kubernetes.io/component"]] = &o.Spec.Template
		case *appsv1.StatefulSet:
			of[o.Labels["app.kubernetes.io/component"]] = &o.Spec.Template
		case *batchv1.Job:
			of[o.Labels["app.kubernetes.io/component"]] = &o.Spec.Template
		case *corev1.Pod:
			of["test"] = &corev1.PodTemplateSpec{ObjectMeta: o.ObjectMeta, Spec: o.Spec}
		}
	}
	return of
}

func TestEveryObjectIsWhatKubernetesKnowsAndRestricted(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		values map[string]any
		pods   int
	}{"region": {region(), 8}, "secured": {secured(), 8}, "one process": {oneProcess(), 2}} {
		list := objects(t, c.values)
		of := pods(list)
		if len(of) != c.pods {
			t.Errorf("%s: %d pods: %v", name, len(of), slices.Sorted(maps.Keys(of)))
		}
		for component, p := range of {
			for _, r := range evaluator.EvaluatePod(api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}, &p.ObjectMeta, &p.Spec) {
				if !r.Allowed {
					t.Errorf("%s: %s: %s: %s", name, component, r.ForbiddenReason, r.ForbiddenDetail)
				}
			}
			if p.Spec.AutomountServiceAccountToken == nil || *p.Spec.AutomountServiceAccountToken || !*p.Spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem {
				t.Errorf("%s: %s has a token of the API server, or may write to its root", name, component)
			}
			for _, v := range p.Spec.Volumes { // least privilege: no secret of a server that the service does not connect to
				if of, _, _ := strings.Cut(v.Name, "-"); of != "api" && !serves(component, of) {
					t.Errorf("%s: %s has the secret %s", name, component, v.Name)
				}
			}
			mounted := map[string]bool{}
			for _, v := range p.Spec.Volumes {
				mounted[v.Name] = true
			}
			for _, m := range p.Spec.Containers[0].VolumeMounts {
				if !mounted[m.Name] && m.Name != "data" {
					t.Errorf("%s: %s mounts %s, which is no volume", name, component, m.Name)
				}
				delete(mounted, m.Name)
			}
			for _, e := range p.Spec.Containers[0].Env {
				if strings.HasSuffix(e.Name, "_FILE") || strings.Contains(e.Name, "_TLS_C") || strings.Contains(e.Name, "_TLS_KEY") {
					if !slices.ContainsFunc(p.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return strings.HasPrefix(e.Value, m.MountPath+"/") }) {
						t.Errorf("%s: %s reads %s from %s, which is not mounted", name, component, e.Name, e.Value)
					}
				}
			}
		}
		t.Logf("%s: %d objects", name, len(list))
	}
}

func TestValuesThatMakeNoSenseAreRefusedWithASentence(t *testing.T) {
	for _, c := range []struct{ values, want string }{
		{"profile: both", "profile"},
		{"partitions: 0", "partitions"},
		{"partitions: many", "partitions"},
		{"servers: {cassandra: {hosts: []}}", "set servers.cassandra.hosts"},
		{"servers: {kafka: {brokers: [kafka]}}", "brokers"},
		{"servers: {s3: {bucket: ''}}", "set servers.s3.bucket"},
		{"servers: {redis: {password: x}}", "password"},
		{"servers: {redis: {username: x}}", "servers.redis.username needs servers.redis.passwordSecret.name"},
		{"servers: {kafka: {tls: {clientCertificate: true}}}", "servers.kafka.tls.clientCertificate needs"},
		{"servers: {s3: {accessKey: x}}", "servers.s3.accessKey needs"},
		{"api: {tokenSecret: {name: '', key: token}}", "say who may use the API"},
		{"api: {tls: {clientAuthority: true}}", "api.tls.clientAuthority needs"},
		{"api: {jwt: {keys: 'https://x'}}", "api.jwt.keys needs"},
		{"services: {executor: {autoscaling: {min: 30}}}", "services.executor.autoscaling.min is greater"},
		{"services: {executer: {}}", "executer"},
		{"settings: {PARTITIONS: 3}", "PARTITIONS"},
		{"logLevel: loud", "logLevel"},
		{"drainLimitSeconds: 0", "drainLimitSeconds"},
	} {
		v := region()
		merge(v, parse(c.values))
		if _, err := render(t, v); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.values, err, c.want)
		}
	}
}

// connections are those that a service opens, by component: the ports of the servers in region().
func connections() map[string][]int {
	const cassandra, kafka, redis, zookeeper, s3 = 9042, 9093, 6379, 2181, 7070
	return map[string][]int{
		"job-api": {cassandra, redis, kafka}, "bucket-loader": {cassandra, redis, kafka, zookeeper}, "scheduler-worker": {cassandra, redis, kafka, zookeeper},
		"executor": {cassandra, redis, kafka, zookeeper}, "retry-manager": {cassandra, redis, kafka}, "audit-writer": {cassandra, kafka, s3},
		"migration": {cassandra, kafka, s3},
	}
}

// serves reports whether a component connects to a kind of server.
func serves(component, server string) bool {
	port := map[string]int{"cassandra": 9042, "kafka": 9093, "redis": 6379, "zookeeper": 2181, "s3": 7070}[server]
	return slices.Contains(connections()[component], port)
}

// egress returns the ports that the policies of a pod let out to anywhere, and whether one lets it reach a public address.
func egress(list []runtime.Object, of labels.Set) (ports map[int]bool, public bool, isolated bool) {
	ports = map[int]bool{}
	for _, o := range list {
		np, ok := o.(*networkingv1.NetworkPolicy)
		if !ok {
			continue
		}
		selector, _ := metav1.LabelSelectorAsSelector(&np.Spec.PodSelector)
		if !selector.Matches(of) || !slices.Contains(np.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) {
			continue
		}
		isolated = true
		for _, e := range np.Spec.Egress {
			for _, p := range e.Ports {
				ports[p.Port.IntValue()] = true
			}
			for _, to := range e.To {
				public = public || len(e.Ports) == 0 && to.IPBlock != nil && to.IPBlock.CIDR == "0.0.0.0/0"
			}
		}
	}
	return ports, public, isolated
}

func TestNetworkPoliciesAllowWhatServicesOpenAndNothingElse(t *testing.T) {
	list := objects(t, region())
	every := map[int]bool{}
	for _, ports := range connections() {
		for _, p := range ports {
			every[p] = true
		}
	}
	for component, p := range pods(list) {
		want, ok := connections()[component]
		if !ok {
			continue // helm's test is no part of the release
		}
		ports, public, isolated := egress(list, p.Labels)
		if !isolated || !ports[53] || public != (component == "executor" || component == "bucket-loader") {
			t.Errorf("%s: isolated %t, names resolved %t, public %t", component, isolated, ports[53], public)
		}
		for port := range every {
			if ports[port] != slices.Contains(want, port) {
				t.Errorf("%s may reach port %d: %t, and needs it: %t", component, port, ports[port], slices.Contains(want, port))
			}
		}
	}
}

// What a container is told of the servers is what the service understands: see services/CONFIGURATION.md.
func TestEverySettingIsOneThatTheServicesKnow(t *testing.T) {
	known := reference(t)
	for _, values := range []map[string]any{region(), secured(), oneProcess()} {
		for component, p := range pods(objects(t, values)) {
			for _, e := range p.Spec.Containers[0].Env {
				if !known[e.Name] && e.Name != "MINUTEHAND_GOMEMLIMIT" {
					t.Errorf("%s: there is no setting %s", component, e.Name)
				}
			}
		}
	}
}

func TestGraceOfAPodIsLongerThanTheDrain(t *testing.T) {
	v := region()
	v["drainLimitSeconds"] = 120
	for component, p := range pods(objects(t, v)) {
		if p.Spec.TerminationGracePeriodSeconds != nil && *p.Spec.TerminationGracePeriodSeconds != 150 {
			t.Errorf("%s: %d s", component, *p.Spec.TerminationGracePeriodSeconds)
		}
	}
}

// The values come from infra/terraform, which names their files; alone, the test holds the example that stands in the README.
func TestValuesOfARegionAreAccepted(t *testing.T) {
	for _, file := range strings.Split(os.Getenv("CHART_VALUES"), ":") {
		values := region()
		if file != "" {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			values = parse(string(text))
		}
		of := pods(objects(t, values))
		if len(of) != 8 {
			t.Errorf("%s: %d pods", file, len(of))
		}
	}
}
