// The start screen: what to do, or what is being waited for.

const ASKED = "Tell me something about the sea.";
const TOLD = "Good morning! How do I sound?";

/**
 * @param {object | null} agent the answer of /agent; null: there was none
 * @param {(id: string) => HTMLElement} $
 */
export function welcome(agent, $) {
  $("progress").hidden = agent !== null && agent.ready;
  $("sample").hidden = !agent?.ready;
  if (agent === null) {
    $("title").textContent = "Looking for the agent";
    $("how").textContent = "It does not answer. This page goes on trying.";
  } else if (!agent.ready) {
    $("title").textContent = "Getting ready";
    $("how").textContent = `${agent.doing}, ${Math.round(agent.since_s)} s so far. A first start may take some minutes.`;
  } else {
    $("title").textContent = agent.listens ? "Talk with the agent" : "Type, and hear it";
    $("how").textContent = invitation(agent);
    $("sample").value = agent.answers ? ASKED : TOLD;
    $("sample").textContent = `Try “${$("sample").value}”`;
  }
}

function invitation({ listens, answers }) {
  if (listens) return "Start the call and speak. Interrupt whenever you like: speak, press Stop or Escape. You can also type.";
  const what = answers ? "The agent answers aloud." : "The agent says it aloud.";
  return `Start the call and type something. ${what} Interrupt with Stop or Escape, or by typing on.`;
}
