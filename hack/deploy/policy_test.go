package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
)

type object = map[string]any

func volume(name, driver, handle string) object {
	return object{"metadata": object{"name": name}, "spec": object{"csi": object{"driver": driver, "volumeHandle": handle}}}
}

// The policy's expressions over what the API server gives them: the new object, and each PersistentVolume there is as params.
func TestPolicyFindsDuplicates(t *testing.T) {
	policy := only[admissionv1.ValidatingAdmissionPolicy](decode(t, "full", mustRender(t, "full")))[0].Spec
	env, err := cel.NewEnv(cel.Variable("object", cel.DynType), cel.Variable("params", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	eval := func(expression string, fresh, other object) any {
		t.Helper()
		ast, issues := env.Compile(expression)
		if issues.Err() != nil {
			t.Fatalf("%s: %v", expression, issues.Err())
		}
		program, err := env.Program(ast)
		if err != nil {
			t.Fatal(err)
		}
		out, _, err := program.Eval(map[string]any{"object": fresh, "params": other})
		if err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		return out.Value()
	}
	const driver, handle = "local-lvm.csi.internal", "node-1/data/db"
	hostPath := object{"metadata": object{"name": "h"}, "spec": object{"hostPath": object{"path": "/x"}}}
	for _, c := range []struct {
		name         string
		fresh, other object
		matches, ok  bool
	}{
		{"same handle", volume("b", driver, handle), volume("a", driver, handle), true, false},
		{"other handle", volume("b", driver, handle), volume("a", driver, handle+"2"), true, true},
		{"other driver has it", volume("b", driver, handle), volume("a", "other", handle), true, true},
		{"itself", volume("a", driver, handle), volume("a", driver, handle), true, true},
		{"beside one that is not CSI", volume("b", driver, handle), hostPath, true, true},
		{"of another driver", volume("b", "other", handle), volume("a", "other", handle), false, true},
		{"not CSI", hostPath, volume("a", driver, handle), false, true},
	} {
		matches := eval(policy.MatchConditions[0].Expression, c.fresh, c.other)
		if matches != c.matches {
			t.Errorf("%s: matches %v", c.name, matches)
		}
		if matches != true {
			continue
		}
		if ok := eval(policy.Validations[0].Expression, c.fresh, c.other); ok != c.ok {
			t.Errorf("%s: %v", c.name, ok)
		}
	}
	told := fmt.Sprint(eval(policy.Validations[0].MessageExpression, volume("b", driver, handle), volume("a", driver, handle)))
	for _, word := range []string{"PersistentVolume a has", handle, "does not start", "Use the claim of a"} {
		if !strings.Contains(told, word) {
			t.Errorf("%q is not in %q", word, told)
		}
	}
}
