#include "tools/eval/tasks/choices.h"

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tools/eval/tasks/words.h"

namespace hydrant::eval {
namespace {

// A sentence or its beginning, and the right end. The end of another item is a wrong one.
struct Item {
  std::string_view given;
  std::string_view end;
};

constexpr Item kCauses[] = {{"The glass fell off the table.", "It broke on the floor."},
                            {"The sun came out.", "The snow melted."},
                            {"She forgot her umbrella.", "She got wet in the rain."},
                            {"He turned the key.", "The door opened."},
                            {"The battery was empty.", "The phone went off."},
                            {"The baker overslept.", "There was no fresh bread."},
                            {"The cat saw a mouse.", "It began to hunt."},
                            {"The road was covered with ice.", "The car slid into the ditch."},
                            {"He ate too much cake.", "His stomach hurt."},
                            {"The wind tore at the tent.", "The tent blew away."},
                            {"The students studied hard.", "They passed the examination."},
                            {"She watered the flowers.", "They bloomed."},
                            {"The dog heard the bell.", "It barked."},
                            {"The river rose.", "The fields were flooded."},
                            {"He told a joke.", "Everybody laughed."},
                            {"The lamp was switched off.", "The room became dark."},
                            {"The milk stood in the sun.", "It turned sour."},
                            {"She missed the train.", "She came late to work."},
                            {"The thief broke the window.", "The alarm rang."},
                            {"The child was tired.", "It fell asleep."},
                            {"He cut his finger.", "It bled."},
                            {"The water boiled.", "Steam rose from the pot."},
                            {"The team scored a goal.", "The fans cheered."},
                            {"The bridge was closed.", "Drivers took another way."},
                            {"She lost her glasses.", "She could not read the letter."},
                            {"The balloon touched a needle.", "It burst."},
                            {"The soup was too salty.", "The guests asked for water."},
                            {"The tree was struck by lightning.", "It caught fire."},
                            {"He lifted heavy boxes all day.", "His back ached."},
                            {"The shop lowered its prices.", "More customers came."},
                            {"The ship hit a rock.", "It sank."},
                            {"The singer lost her voice.", "The concert was cancelled."},
                            {"The farmer forgot to close the gate.", "The cows ran off."},
                            {"The guest knocked at the door.", "The host let him in."},
                            {"The computer caught a virus.", "The files were lost."},
                            {"The player broke the rules.", "The referee sent him off."},
                            {"The winter was very cold.", "The lake froze."},
                            {"He put a coin into the machine.", "A drink came out."},
                            {"The letter had the wrong address.", "It was sent back."},
                            {"She trained every morning.", "She won the race."}};

constexpr Item kGoals[] = {{"To cut a loaf of bread,", "use a knife with a long blade."},
                           {"To see the stars better,", "look through a telescope."},
                           {"To keep milk fresh,", "put it into the refrigerator."},
                           {"To dry wet clothes,", "hang them on a line in the sun."},
                           {"To drive a nail into a wall,", "hit it with a hammer."},
                           {"To clean your teeth,", "brush them with toothpaste."},
                           {"To cross a wide river,", "take the ferry or a bridge."},
                           {"To light a dark cellar,", "carry a lantern."},
                           {"To open a tin of beans,", "use a can opener."},
                           {"To reach a high shelf,", "climb on a ladder."},
                           {"To make tea,", "pour boiling water over the leaves."},
                           {"To sew on a button,", "take a needle and thread."},
                           {"To put out a campfire,", "pour water over it."},
                           {"To measure your height,", "stand against a wall and use a tape."},
                           {"To send a letter,", "put it into an envelope with a stamp."},
                           {"To warm your hands in winter,", "put on woollen gloves."},
                           {"To sharpen a pencil,", "turn it in a sharpener."},
                           {"To learn the time,", "look at a clock."},
                           {"To find north in the woods,", "look at a compass."},
                           {"To bake a cake,", "put the batter into a hot oven."},
                           {"To catch a fish,", "throw out a hook with a worm."},
                           {"To paint a fence,", "dip a broad brush into the paint."},
                           {"To wash a car,", "use a sponge and soapy water."},
                           {"To hang a picture,", "put a hook into the wall."},
                           {"To wake up early,", "set an alarm before going to bed."},
                           {"To protect your head on a bicycle,", "wear a helmet."},
                           {"To remove snow from a path,", "push it aside with a shovel."},
                           {"To water a garden,", "connect a hose to the tap."},
                           {"To mend a flat tyre,", "glue a patch over the hole."},
                           {"To borrow a book,", "show your card at the library."},
                           {"To boil an egg,", "lay it into hot water for some minutes."},
                           {"To calm a crying baby,", "rock it in your arms."},
                           {"To polish shoes,", "rub them with a cloth and wax."},
                           {"To stop a bicycle,", "pull the brakes."},
                           {"To slice a tomato thinly,", "use a sharp serrated knife."},
                           {"To carry water up a hill,", "fill two buckets."},
                           {"To tie a boat to the pier,", "knot its rope around a post."},
                           {"To remove a screw,", "turn it to the left with a screwdriver."},
                           {"To hear a quiet radio better,", "turn up the volume."},
                           {"To keep flies out of a room,", "put a net over the window."}};

std::string Solved(const Item& item) { return fmt::format("{} {}\n", item.given, item.end); }

// Solved examples, and two ends of one more: the right one first.
Case Choose(std::span<const Item> items, const char* task, const Composer& composer, int number) {
  std::mt19937_64 rng = composer.Rng(number);
  const size_t asked = number % items.size();
  const size_t other = (asked + 1 + rng() % (items.size() - 1)) % items.size();
  Ids ids;
  while (static_cast<int>(ids.size()) < composer.Room()) {
    const size_t i = rng() % items.size();
    if (i == asked) continue;
    const Ids solved = composer.Encode(Solved(items[i]));
    ids.insert(ids.end(), solved.begin(), solved.end());
  }
  ids.resize(composer.Room());
  Case made = composer.BeginPlain(number, ids, true);
  const Ids given = composer.Encode("\n" + std::string(items[asked].given));
  for (const size_t end : {asked, other}) {
    const Ids ending = composer.Encode(" " + std::string(items[end].end));
    made.trial.dialogues.push_back({{.read = given, .foreseen = ending}});
  }
  made.questions.push_back({.task = task, .judge = Judge::kChoice, .choices = 2});
  return made;
}

Case Effect(const Composer& composer, int number) {
  return Choose(kCauses, "choice-effect", composer, number);
}

Case Means(const Composer& composer, int number) {
  return Choose(kGoals, "choice-means", composer, number);
}

}  // namespace

std::vector<Task> ChoiceTasks() {
  return {{"choice-effect", "is the effect of a cause likelier than another sentence (as COPA)?",
           Effect},
          {"choice-means", "is the way to a goal likelier than another (as PIQA)?", Means}};
}

}  // namespace hydrant::eval
