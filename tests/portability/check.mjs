// Compiles compute shaders with Tint, through Dawn's back end that needs no GPU.
//
// stdin: JSON, a list of {wgsl, overrides: {name: number}, features: [name],
//     bindings: ["read-only-storage" | "storage" | "uniform"]}
// stdout: JSON, a list of errors for each shader, empty where it compiles.
//
// The device has the default limits of WebGPU and the features that the shaders ask for.
import { readFileSync } from "node:fs";
import { create, globals } from "webgpu";

Object.assign(globalThis, globals);

// Features of WebGPU that WGSL wants to see named in the text, as the runner does.
const ENABLE = { "shader-f16": "f16", subgroups: "subgroups" };

async function openDevice(gpu, features) {
  const adapter = await gpu.requestAdapter();
  if (!adapter) throw new Error("Dawn has no adapter for its null back end");
  const missing = features.filter((name) => !adapter.features.has(name));
  if (missing.length) throw new Error(`Dawn's null back end lacks ${missing}`);
  return await adapter.requestDevice({ requiredFeatures: features });
}

function layoutOf(device, bindings) {
  const entries = bindings.map((type, binding) => ({
    binding,
    visibility: GPUShaderStage.COMPUTE,
    buffer: { type },
  }));
  const group = device.createBindGroupLayout({ entries });
  return device.createPipelineLayout({ bindGroupLayouts: [group] });
}

async function errorsOf(device, shader) {
  const enable = shader.features.filter((f) => f in ENABLE).map((f) => `enable ${ENABLE[f]}; `);
  device.pushErrorScope("validation");
  const module = device.createShaderModule({ code: enable.join("") + shader.wgsl });
  const { messages } = await module.getCompilationInfo();
  const errors = messages
    .filter((message) => message.type === "error")
    .map((message) => `line ${message.lineNum}: ${message.message}`);
  if (!errors.length) {
    try {
      await device.createComputePipelineAsync({
        layout: layoutOf(device, shader.bindings),
        compute: { module, entryPoint: "main", constants: shader.overrides },
      });
    } catch (error) {
      errors.push(error.message);
    }
  }
  const scoped = await device.popErrorScope();
  if (scoped && !errors.length) errors.push(scoped.message);
  return errors;
}

const shaders = JSON.parse(readFileSync(0, "utf8"));
const features = [...new Set(shaders.flatMap((shader) => shader.features))].sort();
// Dawn aborts the process if this is collected before the device is done.
const gpu = (globalThis.gpu = create(["backend=null"]));
const device = await openDevice(gpu, features);
const errors = [];
for (const shader of shaders) errors.push(await errorsOf(device, shader));
process.stdout.write(JSON.stringify(errors), () => process.exit(0));
