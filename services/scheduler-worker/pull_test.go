package schedulerworker

import "testing"

func TestListLetsGoOfWhatIsPulled(t *testing.T) {
	whole := []*task{{}, {}, {}}
	list := whole
	tasks := pull(&list, 2)
	if len(tasks) != 2 || len(list) != 1 || whole[0] != nil || whole[1] != nil || list[0] == nil {
		t.Errorf("%d tasks were pulled, %d are left, and the list still holds %v", len(tasks), len(list), whole)
	}
	if tasks = pull(&list, 2); len(tasks) != 1 || len(list) != 0 {
		t.Errorf("%d tasks were pulled of one, %d are left", len(tasks), len(list))
	}
}
