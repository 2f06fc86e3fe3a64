package tiering

import (
	"testing"

	"github.com/mink-project/mink/core/internal/codefault"
)

// TestUpkeepNoticesFaultsOfCode: changes of the maintenance between rounds.
func TestUpkeepNoticesFaultsOfCode(t *testing.T) {
	const upkeep = "core/tiering/upkeep.go"
	codefault.MustNotice(t, "../..", []codefault.Fault{
		{
			Name: "a compaction is not recorded", File: upkeep, Tests: "^TestUpkeepInPieces$",
			Old: "\treturn a.record(ctx, round, made.Snapshot, base.Ends)\n", New: "\t_ = made.Snapshot\n\treturn nil\n",
		},
		{
			Name: "an expiry keeps what was recorded before the compaction", File: upkeep, Tests: "^TestUpkeepExpiresAfterItsCompaction$",
			Old: "if err := a.look(); err != nil || a.out.gone { // what is recorded by now may be in use\n", New: "if err := ctx.Err(); err != nil || a.out.gone {\n",
		},
		{
			Name: "a table is compacted after each round", File: upkeep, Tests: "^TestUpkeepComesBetweenRounds$",
			Old: "\t\t\tif u.more = done.Compacted.More; !u.more {\n\t\t\t\tu.rounds = 0\n", New: "\t\t\tif u.more = done.Compacted.More; !u.more {\n\t\t\t\tu.rounds = compactRounds - 1\n",
		},
		{
			Name: "an idle table is expired again and again", File: upkeep, Tests: "^TestUpkeepComesBetweenRounds$",
			Old: "\t\t\tu.expired, u.since = now, false\n", New: "\t\t\tu.expired = now\n",
		},
		{
			Name: "compactions are counted as rounds", File: "core/tiering/tiering.go", Tests: "^TestUpkeepComesBetweenRounds$",
			Old: "if out.round != \"\" && out.kept.Compactions > 0 {", New: "if out.round != \"\" && out.kept.Compactions < 0 {",
		},
		{
			Name: "maintenance never has its turn while rows come", File: upkeep, Tests: "^TestUpkeepOfATableThatIsNeverIdle$",
			Old: "return u.rounds >= starvedRounds || len(u.asked) > 0", New: "return len(u.asked) > 0",
		},
		{
			Name: "maintenance that fails is tried every second", File: upkeep, Tests: "^TestUpkeepThatFailsHoldsUpNoRound$",
			Old: "now.Add(u.pause.NextBackOff())", New: "now.Add(time.Second)",
		},
		{
			Name: "who asked is answered after a piece", File: upkeep, Tests: "^TestUpkeepInPieces$",
			Old: "if err == nil && r.work == WorkCompact && u.more {", New: "if err == nil && r.work == WorkCompact && u.none {",
		},
		{
			Name: "who asked is not told of a failure", File: upkeep, Tests: "^TestUpkeepOnRequest$",
			Old: "\t\tu.answer(r, err)\n", New: "\t\tu.answer(r, nil)\n",
		},
	}, "^TestUpkeep")
}
