package servers

import (
	"context"
	"slices"
	"sync"

	"github.com/minutehand/minutehand/libs/coord"
)

// Coord is the coordinator: it balances each role's partitions over its members, with few moves.
type Coord struct {
	mu         sync.Mutex
	partitions int
	number     int64
	members    map[coord.Role][]*Member
}

// NewCoord returns a coordinator of this many partitions.
func NewCoord(partitions int) *Coord {
	return &Coord{partitions: partitions, members: map[coord.Role][]*Member{}}
}

// Member is a process in a role.
type Member struct {
	coord *Coord
	role  coord.Role
	owned []coord.Owner
	sets  chan []coord.Owner
	gone  bool
}

// StartNumber implements coord.Coordinator.
func (c *Coord) StartNumber(context.Context) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number++
	return c.number, nil
}

// Join implements coord.Coordinator.
func (c *Coord) Join(ctx context.Context, role coord.Role) (<-chan []coord.Owner, error) {
	m := c.Member(role)
	context.AfterFunc(ctx, m.Leave)
	return m.Sets(), nil
}

// Member joins a role until Leave.
func (c *Coord) Member(role coord.Role) *Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &Member{coord: c, role: role, sets: make(chan []coord.Owner, 1)}
	c.members[role] = append(c.members[role], m)
	c.balance(role)
	return m
}

// Sets carries what the member owns.
func (m *Member) Sets() <-chan []coord.Owner { return m.sets }

// Lapse takes everything from a member that is not heard from, without telling it: it goes on as an owner until Return.
func (m *Member) Lapse() {
	m.coord.mu.Lock()
	defer m.coord.mu.Unlock()
	m.coord.members[m.role] = slices.DeleteFunc(m.coord.members[m.role], func(o *Member) bool { return o == m })
	m.owned = nil
	m.coord.balance(m.role)
}

// Return makes a lapsed member a member again.
func (m *Member) Return() {
	m.coord.mu.Lock()
	defer m.coord.mu.Unlock()
	if !m.gone && !slices.Contains(m.coord.members[m.role], m) {
		m.coord.members[m.role] = append(m.coord.members[m.role], m)
		m.coord.balance(m.role)
	}
}

// Leave ends the membership.
func (m *Member) Leave() {
	m.Lapse()
	m.coord.mu.Lock()
	defer m.coord.mu.Unlock()
	if !m.gone {
		m.gone = true
		close(m.sets)
	}
}

// balance moves as few partitions as it must, each under a new epoch, and tells every member what it owns.
func (c *Coord) balance(role coord.Role) {
	members := c.members[role]
	if len(members) == 0 {
		return
	}
	owner := make([]*Member, c.partitions)
	for i, m := range members {
		most := c.partitions / len(members)
		if i < c.partitions%len(members) {
			most++
		}
		m.owned = m.owned[:min(len(m.owned), most)]
		for _, o := range m.owned {
			owner[o.Partition] = m
		}
	}
	for p, m := range owner {
		if m != nil {
			continue
		}
		least := slices.MinFunc(members, func(a, b *Member) int { return len(a.owned) - len(b.owned) })
		c.number++
		least.owned = append(slices.Clone(least.owned), coord.Owner{Role: role, Partition: p, Epoch: c.number})
	}
	for _, m := range members {
		select {
		case <-m.sets:
		default:
		}
		m.sets <- slices.Clone(m.owned)
	}
}
